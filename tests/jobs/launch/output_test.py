"""Tests of the output of `python -m jax_cxl.launch`."""

import os
import pty
import select
import sys
import time

from absl.testing import absltest, parameterized
from launch_harness import MARK, PROGRAMS, LaunchTestCase

from jax_cxl._commands.launch import output


class OutputTest(LaunchTestCase):
    """The lines of several ranks in the launcher's output."""

    def test_long_lines_stay_whole_and_on_their_stream(self):
        expected = [
            f"[{rank}] {text}"
            for rank, letter in enumerate("abcd")
            for text in (letter, letter * 5000, letter * 300_000, "end")
        ]
        status, stdout, stderr = self.launch("-n", "4", "lines.py")
        self.assertEqual(status, 0)
        self.assertTrue(sorted(stdout.splitlines()) == sorted(expected))
        self.assertTrue(sorted(stderr.splitlines()) == sorted(expected))

    def test_a_slow_reader_gets_all_that_a_failed_job_printed(self):
        with self.start("--grace=0.2", "lines.py", "fail") as launcher:
            self.wait_for(lambda: len(self.processes()) == 2, seconds=30)
            time.sleep(0.5)  # Past the grace period.
            stdout, stderr = launcher.communicate(timeout=60)
        self.assertEqual(launcher.returncode, 7)
        expected = ["[0] " + "a" * length for length in (1, 5000, 300_000)]
        self.assertTrue(stdout.splitlines() == [*expected, "[0] end"])
        self.assertContainsSubset(expected, stderr.splitlines())

    def test_no_prefix(self):
        _, stdout, _ = self.launch("--no-prefix", "lines.py")
        self.assertCountEqual(
            {line[:3] for line in stdout.splitlines()}, ["a", "b", "aaa", "bbb", "end"]
        )

    def test_progress_in_a_file_becomes_lines(self):
        _, stdout, stderr = self.launch("progress.py")
        self.assertEqual(stdout, "[0] a line\n")
        self.assertEqual(stderr, "[0] step 0\n[0] step 1\n[0] step 2\n")

    def test_progress_on_a_terminal_stays_one_line(self):
        shown = self._on_terminal("progress.py", extra={"TERM": "xterm", "NO_COLOR": "1"})
        erase = "\r\x1b[K"
        # The line "a line" replaces the progress bar, and the bar comes back below this line.
        self.assertIn(f"{erase}[0] step 0{erase}[0] step 1{erase}", shown)
        self.assertIn(f"{erase}[0] a line\r\n[0] step 1{erase}", shown)
        # What a terminal shows in the end: each line from its last erasure on.
        lines = [line.rpartition(erase)[2] for line in shown.removesuffix("\r\n").split("\r\n")]
        self.assertEqual(lines, ["[0] a line", "[0] step 2"])

    @parameterized.parameters(
        ({"TERM": "xterm", "NO_COLOR": ""}, "\x1b[36m[0]\x1b[0m a line"),
        ({"TERM": "dumb"}, "[0] a line"),
    )
    def test_colors_on_a_capable_terminal(self, extra, line):
        shown = self._on_terminal("progress.py", extra=extra)
        self.assertIn(line, shown)

    def test_a_dialogue_at_a_terminal(self):
        pid, terminal = pty.fork()
        if pid == 0:
            # The launcher leads the terminal's session, as if it were started from a shell.
            os.environ.update({MARK: self._mark, "TERM": "xterm", "NO_COLOR": "1"})
            command = [sys.executable, "-m", "jax_cxl.launch", str(PROGRAMS / "ask.py")]
            os.execv(sys.executable, command)
        shown = b""
        for expected, typed in ((b"[0] name? ", b"Ada\n"), (b"hello Ada", b"\x03")):
            while expected not in shown:
                self.assertTrue(select.select([terminal], [], [], 10)[0], shown)
                shown += os.read(terminal, 4096)
            os.write(terminal, typed)
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(status), 130)

    def _on_terminal(self, *arguments: str, extra: dict[str, str]) -> str:
        ours, theirs = pty.openpty()
        shown = b""
        with self.start(*arguments, extra=extra, stdout=theirs, stderr=theirs) as launcher:
            os.close(theirs)
            while select.select([ours], [], [], 30)[0]:
                try:
                    shown += os.read(ours, 4096)
                except OSError:
                    break  # All that had the terminal open are gone.
        os.close(ours)
        self.assertEqual(launcher.returncode, 0)
        return shown.decode()


class SourceTest(parameterized.TestCase):
    """A stream is cut into lines correctly, wherever the pipe splits it."""

    @parameterized.product(
        piece=(1, 2, 3, 1000),
        case=(
            (b"a\nb\n", b"> a\n> b\n"),
            (b"\n\na", b"> \n> \n> a\n"),
            (b"a\r\nb", b"> a\r\n> b\n"),
            (b"10%\r20%\r\n", b"> 10%\n> 20%\r\n"),
            (b"\r10%\r  \r20%\r", b"> 10%\n> 20%\n"),
            (b"", b""),
        ),
    )
    def test_lines_of_a_file(self, piece, case):
        text, expected = case
        read, write = os.pipe()
        result_read, result_write = os.pipe()
        sink = output.Sink(result_write, terminal=False)
        source = output.Source(read, sink, b"> ", live=True)
        for start in range(0, len(text), piece):
            os.write(write, text[start : start + piece])
            source.read()
        os.close(write)
        source.read()
        self.assertTrue(source.closed)
        while sink.pending:
            sink.write()
        os.close(result_write)
        with os.fdopen(result_read, "rb") as result:
            self.assertEqual(result.read(), expected)

    @parameterized.parameters(
        # The input is a progress bar of the library rich, which hides the cursor, and erases the
        # line before each state. On a terminal, only its colors stay.
        (True, b"> \x1b[36m1/2\x1b[0m\n> a line\n> 2/2\n"),
        (
            False,
            b"> \x1b[?25l\n> \x1b[2K\x1b[36m1/2\x1b[0m\n> \x1b[2Ka line\n"
            b"> \x1b[2K2/2\n> \x1b[?25h\n",
        ),
    )
    def test_lines_on_a_terminal_neither_move_the_cursor_nor_erase(self, terminal, expected):
        text = b"\x1b[?25l\r\x1b[2K\x1b[36m1/2\x1b[0m\n\x1b[2Ka line\n\r\x1b[2K2/2\n\x1b[?25h"
        read, write = os.pipe()
        result_read, result_write = os.pipe()
        sink = output.Sink(result_write, terminal=terminal)
        source = output.Source(read, sink, b"> ", live=False)
        os.write(write, text)
        os.close(write)
        while not source.closed:
            source.read()
        while sink.pending:
            sink.write()
        os.close(result_write)
        with os.fdopen(result_read, "rb") as result:
            self.assertEqual(result.read(), expected)


if __name__ == "__main__":
    absltest.main()
