"""Tests of `python -m jax_cxl.launch`, run as users run it."""

import contextlib
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

from absl.testing import absltest, parameterized

from jax_cxl._launch import environment, output

_PROGRAMS = pathlib.Path(__file__).parent / "launch_programs"
_MARK = "JAX_CXL_LAUNCH_TEST"

# As in a step of a Slurm job, where the launcher must win all the same.
_SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_NODELIST": "node[7-8]",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
}
_OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_RANK": "9",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


def child_of(pid: int) -> int:
    """Returns the only child of a process, such as a launcher's supervisor."""
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text())


class LaunchTestCase(parameterized.TestCase):
    """Starts launchers and checks that each leaves no process behind."""

    def setUp(self):
        super().setUp()
        self._mark = uuid.uuid4().hex
        # A test runner in the background ignores SIGINT, and launchers would inherit that.
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(self._check_nothing_left)

    def _check_nothing_left(self) -> None:
        self.assertEmpty(self._kill_all())

    def _kill_all(self) -> list[int]:
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def processes(self) -> list[int]:
        """Returns every living process that this test's launchers brought about."""
        mark = f"{_MARK}={self._mark}".encode()
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue  # It ended, or belongs to somebody else.
        return found

    @contextlib.contextmanager
    def start(
        self, *arguments: str, extra: dict[str, str] | None = None, **options
    ) -> Iterator[subprocess.Popen[str]]:
        """Starts a launcher; programs are named without their folder."""
        command = [str(_PROGRAMS / a) if a.endswith(".py") else a for a in arguments]
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        with subprocess.Popen(
            [sys.executable, "-m", "jax_cxl.launch", *command],
            env={**os.environ, _MARK: self._mark, **(extra or {})},
            text=True,
            **options,
        ) as launcher:
            try:
                yield launcher
            except BaseException:
                self._kill_all()  # Or leaving would wait for a job that never ends.
                raise

    def launch(self, *arguments: str, **options) -> tuple[int, str, str]:
        """Runs a launcher and returns status, output and errors."""
        with self.start(*arguments, **options) as launcher:
            stdout, stderr = launcher.communicate(timeout=60)
        return launcher.returncode, stdout, stderr

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        """Waits until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, "timed out")
            time.sleep(0.02)


class ScriptTest(LaunchTestCase):
    """What a script sees."""

    @parameterized.parameters(
        ([],),
        (["--", "-n", "7", "--no-prefix", "--", "-h"],),
        (["", "a b", "*", "--flag=1", "-m", "x\ty"],),
    )
    def test_arguments_reach_the_script_untouched(self, arguments):
        status, stdout, stderr = self.launch("--no-prefix", "show.py", *arguments)
        self.assertEqual((status, stderr), (0, ""))
        ranks = sorted(map(json.loads, stdout.splitlines()), key=lambda shown: shown["rank"])
        self.assertEqual([shown["rank"] for shown in ranks], [0, 1])
        for shown in ranks:
            self.assertEqual(shown["arguments"], arguments)
            self.assertEqual(shown["file"], "show.py")
            self.assertEqual(shown["main"], "from the script's own __main__")
            self.assertEqual(shown["folder"], "launch_programs")
            self.assertTrue(shown["launched"])
            self.assertFalse(shown["jax"])

    def test_runs_a_module(self):
        path = os.pathsep.join([str(_PROGRAMS), *filter(None, sys.path)])
        status, stdout, _ = self.launch(
            "-n", "1", "-m", "show", "-n", "3", extra={"PYTHONPATH": path}
        )
        self.assertEqual(status, 0)
        shown = json.loads(stdout)
        self.assertEqual(shown["arguments"], ["-n", "3"])
        self.assertEqual(shown["main"], "from the script's own __main__")

    def test_a_leading_double_dash_ends_the_options(self):
        status, stdout, _ = self.launch("-n", "1", "--", "show.py", "--", "-n")
        self.assertEqual(status, 0)
        self.assertEqual(json.loads(stdout)["arguments"], ["--", "-n"])

    def test_rank_0_reads_the_input(self):
        with self.start("--no-prefix", "show.py", stdin=subprocess.PIPE) as launcher:
            stdout, _ = launcher.communicate("typed", timeout=30)
        shown = {line["rank"]: line["stdin"] for line in map(json.loads, stdout.splitlines())}
        self.assertEqual(shown, {0: "typed", 1: ""})

    @parameterized.parameters(
        ([], "SCRIPT or -m MODULE is missing"),
        (["missing.py"], "no such file"),
        (["-n", "0", "end.py"], "must be at least 1"),
        (["--devices-per-process", "0", "end.py"], "must be at least 1"),
        (["--grace", "-1", "end.py"], "must not be negative"),
        (["--restarts", "-1", "end.py"], "must not be negative"),
    )
    def test_refuses_a_wrong_command_line(self, arguments, message):
        status, stdout, stderr = self.launch(*arguments)
        self.assertEqual((status, stdout), (2, ""))
        self.assertIn(message, stderr)

    def test_the_script_can_spawn_its_own_functions(self):
        status, stdout, stderr = self.launch("spawn.py")
        self.assertEqual(status, 0, stderr)
        self.assertCountEqual(stdout.splitlines(), ["[0] [2, 4]", "[1] [2, 4]"])

    def test_an_error_shows_the_script_only(self):
        status, _, stderr = self.launch("end.py", "raise")
        self.assertEqual(status, 1)
        self.assertIn("RuntimeError: the script's own error", stderr)
        self.assertEqual(stderr.count("  File "), 1, stderr)


class DistributedTest(LaunchTestCase):
    """The launcher and a real `jax.distributed`."""

    @parameterized.named_parameters(
        ("plain", {}),
        ("in_slurm", _SLURM),
        ("in_open_mpi", _OPEN_MPI),
        (
            "behind_a_proxy_and_an_old_coordinator",
            {
                "http_proxy": "http://127.0.0.1:9",
                "https_proxy": "http://127.0.0.1:9",
                "JAX_COORDINATOR_ADDRESS": "192.0.2.1:1",
                "JAX_COORDINATOR_BIND_ADDRESS": "192.0.2.1:1",
            },
        ),
    )
    def test_initialize_without_arguments(self, extra):
        status, stdout, stderr = self.launch(
            "-n", "2", "--devices-per-process", "2", "distributed.py", extra=extra
        )
        self.assertEqual(status, 0, stderr)
        # Gloo's threads print too, and into each other's lines; the script does so after them.
        self.assertCountEqual(
            [line for line in stdout.splitlines() if "process" in line],
            [f"[{r}] process {r} of 2, 2 of 4 devices, sum 6" for r in range(2)],
        )

    def test_comes_first_where_jax_was_imported_before(self):
        program = (
            "import jax; from jax_cxl._launch import detect; detect.install();"
            "from jax._src.clusters import ClusterEnv; print(ClusterEnv._cluster_types[0].name)"
        )
        shown = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        self.assertEqual(shown.stdout, "jax_cxl\n")

    # An error and an exit run JAX's shutdown, which waits for the others.
    @parameterized.parameters(("raise", 1), ("exit", 5), ("_exit", 5))
    def test_a_failing_rank_ends_one_that_swallows_sigterm(self, how, expected):
        extra = {"JAX_PLATFORMS": "cpu"}
        with self.start("--grace=0.5", "preempted.py", how, extra=extra) as launcher:
            assert launcher.stdout is not None
            self.assertIn("connected", launcher.stdout.readline())
            self.assertIn("connected", launcher.stdout.readline())
            started = time.monotonic()
            _, stderr = launcher.communicate(timeout=20)
            self.assertLess(time.monotonic() - started, 5)
        self.assertEqual(launcher.returncode, expected)
        self.assertIn(f"rank 1 failed with status {expected}; ending the others", stderr)

    @parameterized.parameters("launcher", "supervisor")
    def test_sigkill_ends_ranks_that_swallow_sigterm(self, victim):
        with self.start("preempted.py", extra={"JAX_PLATFORMS": "cpu"}) as launcher:
            assert launcher.stdout is not None
            self.assertIn("connected", launcher.stdout.readline())
            self.assertIn("connected", launcher.stdout.readline())
            supervisor = child_of(launcher.pid)
            if victim == "supervisor":
                # The launcher would clean up: here the kernel alone has to.
                launcher.send_signal(signal.SIGSTOP)
                os.kill(supervisor, signal.SIGKILL)
            else:
                launcher.kill()
            own = {launcher.pid, supervisor}
            self.wait_for(lambda: not set(self.processes()) - own, seconds=5)
            launcher.kill()
            launcher.communicate()
        self.wait_for(lambda: not self.processes(), seconds=5)


class EndTest(LaunchTestCase):
    """How jobs end, and what is left."""

    @parameterized.parameters(
        ("0", 0, None),
        ("3", 3, "rank 1 failed with status 3"),
        ("255", 255, "rank 1 failed with status 255"),
        ("raise", 1, "rank 1 failed with status 1"),
        ("-9", 137, "rank 1 was killed by SIGKILL"),
        ("-11", 139, "rank 1 was killed by SIGSEGV"),
    )
    def test_status_of_the_first_rank_to_fail(self, how, expected, message):
        started = time.monotonic()
        status, _, stderr = self.launch("-n", "3", "end.py", how)
        self.assertEqual(status, expected)
        # Well before the grace period: sleepers obey SIGTERM.
        self.assertLess(time.monotonic() - started, 3)
        said = [line for line in stderr.splitlines() if line.startswith("jax_cxl.launch: ")]
        if message is None:
            self.assertEmpty(said)
        else:
            self.assertEqual(said, [f"jax_cxl.launch: {message}; ending the others"])

    def test_a_failing_rank_runs_its_exit_handlers(self):
        status, stdout, _ = self.launch("-n", "3", "exit_handler.py")
        self.assertEqual((status, stdout), (6, "[1] handler\n"))

    def test_a_rank_that_ignores_sigterm_is_killed(self):
        started = time.monotonic()
        status, _, _ = self.launch("--grace=0.5", "end.py", "4", "stubborn")
        self.assertEqual(status, 4)
        self.assertGreater(time.monotonic() - started, 0.5)

    def test_ranks_start_again(self):
        status, stdout, stderr = self.launch("--restarts=2", "retry.py", "2")
        self.assertEqual((status, sorted(stdout.splitlines())), (0, ["[0] done", "[1] done"]))
        failed = "jax_cxl.launch: rank 1 failed with status 3; ending the others"
        restart = "jax_cxl.launch: restart {} of 2"
        self.assertEqual(
            stderr.splitlines(), [failed, restart.format(1), failed, restart.format(2)]
        )

    def test_ranks_do_not_start_again_for_ever(self):
        status, stdout, stderr = self.launch("--restarts=2", "retry.py", "3")
        self.assertEqual((status, stdout), (3, ""))
        self.assertEqual(stderr.count("failed with status 3"), 3)

    def test_a_signal_ends_a_job_with_restarts(self):
        with self.start("--grace=0.5", "--restarts=5", "family.py") as launcher:
            self._wait_until_ready(launcher)
            launcher.send_signal(signal.SIGTERM)
            _, stderr = launcher.communicate(timeout=10)
        self.assertEqual(launcher.returncode, 128 + signal.SIGTERM)
        self.assertNotIn("restart", stderr)

    @parameterized.product(
        number=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP), arguments=((), ("stubborn",))
    )
    def test_a_signal_to_the_launcher(self, number, arguments):
        with self.start("--grace=0.5", "family.py", *arguments) as launcher:
            self._wait_until_ready(launcher)
            launcher.send_signal(number)
            _, stderr = launcher.communicate(timeout=10)
        self.assertEqual(launcher.returncode, 128 + number)
        self.assertIn(f"jax_cxl.launch: {number.name}: ending all ranks\n", stderr)

    def test_a_second_signal_kills(self):
        with self.start("--grace=600", "family.py", "stubborn") as launcher:
            self._wait_until_ready(launcher)
            launcher.send_signal(signal.SIGINT)
            assert launcher.stderr is not None
            self.assertIn("SIGINT", launcher.stderr.readline())
            launcher.send_signal(signal.SIGINT)
            launcher.communicate(timeout=5)
        self.assertEqual(launcher.returncode, 130)

    def test_a_signal_ends_a_job_whose_output_nobody_reads(self):
        with self.start("--grace=0.5", "flood.py") as launcher:
            time.sleep(1)
            launcher.terminate()
            self.assertEqual(launcher.wait(timeout=5), 143)

    def test_a_reader_that_goes_ends_the_writers(self):
        with self.start("flood.py") as launcher:
            assert launcher.stdout is not None and launcher.stderr is not None
            launcher.stdout.readline()
            launcher.stdout.close()
            self.assertEqual(launcher.wait(timeout=5), 1)
            self.assertIn("BrokenPipeError", launcher.stderr.read())

    @parameterized.parameters("launcher", "supervisor", "group")
    def test_sigkill_leaves_no_process(self, victim):
        with self.start("family.py", "stubborn", start_new_session=True) as launcher:
            self._wait_until_ready(launcher)
            # Launcher, supervisor, two ranks with two children each.
            self.assertLen(self.processes(), 8)
            if victim == "launcher":
                launcher.kill()
            elif victim == "supervisor":
                os.kill(child_of(launcher.pid), signal.SIGKILL)
            else:
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.communicate(timeout=10)
            self.wait_for(lambda: not self.processes(), seconds=5)
        self.assertIn(launcher.returncode, (-signal.SIGKILL, 128 + signal.SIGKILL))

    def test_background_processes_end_with_the_last_rank(self):
        status, _, _ = self.launch("--grace=0.3", "family.py", "end")
        self.assertEqual(status, 0)

    def _wait_until_ready(self, launcher: subprocess.Popen[str]) -> None:
        assert launcher.stdout is not None
        for _ in range(2):
            self.assertIn("ready", launcher.stdout.readline())


class OutputTest(LaunchTestCase):
    """Lines of several ranks in one place."""

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
            self.wait_for(lambda: len(self.processes()) == 2, seconds=10)
            time.sleep(0.5)  # Past the grace period.
            stdout, stderr = launcher.communicate(timeout=10)
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
        # The line in between takes the bar away, and the bar comes back below it.
        self.assertIn(f"{erase}[0] step 0{erase}[0] step 1{erase}", shown)
        self.assertIn(f"{erase}[0] a line\r\n[0] step 1{erase}", shown)
        # What a terminal shows in the end: each line from its last erasure on.
        lines = [line.rpartition(erase)[2] for line in shown.removesuffix("\r\n").split("\r\n")]
        self.assertEqual(lines, ["[0] a line", "[0] step 2"])

    @parameterized.parameters(
        ({"TERM": "xterm", "NO_COLOR": ""}, "\x1b[36m[0]\x1b[0m a line"),
        ({"TERM": "dumb"}, "[0] a line"),
    )
    def test_colours_on_a_capable_terminal(self, extra, line):
        shown = self._on_terminal("progress.py", extra=extra)
        self.assertIn(line, shown)

    def test_a_dialogue_at_a_terminal(self):
        pid, terminal = pty.fork()
        if pid == 0:
            # The launcher leads the terminal's session, as started from a shell.
            os.environ.update({_MARK: self._mark, "TERM": "xterm", "NO_COLOR": "1"})
            command = [sys.executable, "-m", "jax_cxl.launch", str(_PROGRAMS / "ask.py")]
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
    """Cutting a stream into lines, wherever the pipe cuts it."""

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

    def test_a_progress_bar_survives_a_line_that_comes_in_two_pieces(self):
        result_read, result_write = os.pipe()
        sink = output.Sink(result_write, terminal=True)
        pipes = [os.pipe() for _ in range(2)]
        bar, lines = (output.Source(read, sink, b"> ", live=True) for read, _ in pipes)
        for source, number, text in (
            (bar, 0, b"\r10%"),
            (lines, 1, b"a line"),
            (lines, 1, b"\n"),
            (bar, 0, b"\r20%"),
        ):
            os.write(pipes[number][1], text)
            source.read()
        while sink.pending:
            sink.write()
        for descriptor in (result_write, *(write for _, write in pipes)):
            os.close(descriptor)
        bar.close()
        lines.close()
        with os.fdopen(result_read, "rb") as result:
            shown = result.read().split(b"\r\x1b[K")
        self.assertEqual(
            shown, [b"", b"> 10%", b"> a line", b"> 10%", b"> a line\n> 10%", b"> 20%"]
        )


class EnvironmentTest(parameterized.TestCase):
    """The variables of a rank."""

    def _environment(self, base: dict[str, str], **options) -> dict[str, str]:
        options = {"rank": 1, "size": 2, "port": 5, "devices_per_process": None, **options}
        return environment.rank_environment(base, **options)

    @parameterized.parameters(
        (None, {}, "1", None),
        (3, {}, "3,4,5", "3"),
        (None, {"JAX_LOCAL_DEVICE_IDS": "0"}, "0", None),
        (2, {"JAX_LOCAL_DEVICE_IDS": "0"}, "0", "2"),
        (None, {"JAX_LOCAL_DEVICE_IDS": "7", environment.RANK: "7"}, "1", None),
    )
    def test_devices(self, count, base, gpus, cpus):
        found = self._environment(base, devices_per_process=count)
        self.assertEqual(found["JAX_LOCAL_DEVICE_IDS"], gpus)
        self.assertEqual(found.get("JAX_NUM_CPU_DEVICES"), cpus)

    @parameterized.parameters(
        ({}, {}),
        ({"http_proxy": "p"}, {"no_proxy": "127.0.0.1"}),
        ({"https_proxy": "p", "no_proxy": "x"}, {"no_proxy": "x,127.0.0.1"}),
        (
            {"grpc_proxy": "p", "no_grpc_proxy": "x", "no_proxy": "y"},
            {"no_grpc_proxy": "x,127.0.0.1", "no_proxy": "y"},
        ),
    )
    def test_loopback_needs_no_proxy(self, base, expected):
        found = self._environment(base)
        self.assertEqual({k: v for k, v in found.items() if k.startswith("no_")}, expected)

    def test_the_users_choices_stay(self):
        base = {"XLA_FLAGS": "--x", "JAX_PLATFORMS": "cuda", "OTHER": "1"}
        self.assertContainsSubset(base, self._environment(base, devices_per_process=2))

    def test_only_ranks_are_launched(self):
        self.assertFalse(
            re.search("LAUNCH_(RANK|SIZE)", " ".join(os.environ)) or environment.launched()
        )


if __name__ == "__main__":
    absltest.main()
