"""`python -m jax_cxl status` and `trace` of running jobs, and the launcher's post mortem."""

import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

import job
import status_command
from absl.testing import absltest, parameterized

from jax_cxl._commands.status import pools


def _wait_for_children(pid: int, count: int) -> list[int]:
    deadline = time.monotonic() + 60
    while True:
        found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(found) == count:
            return [int(child) for child in found]
        assert time.monotonic() < deadline, f"{pid} has {len(found)} children, not {count}"
        time.sleep(0.01)


def _wait_for_end(pid: int) -> None:
    """Waits until a process that need not be a child has ended."""
    fd = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([fd], [], [], 60)
        assert ended, f"{pid} does not end"
    finally:
        os.close(fd)


class StatusTest(parameterized.TestCase):
    @parameterized.parameters(
        ("late", "late", "is in no collective"), ("stop", "culprits", "is stopped")
    )
    def test_of_a_running_job(self, how, key, words):
        with job.start("failures/stuck.py", how) as running:
            ready = (line for line in running.stdout if "ready" in line)
            pids = [int(next(ready).split()[-1]) for _ in range(2)]
            deadline = time.monotonic() + 60
            while not json.loads((status := status_command.run(str(min(pids)), "--json")).stdout)[
                "jobs"
            ][0][key]:
                self.assertLess(time.monotonic(), deadline, status)
                time.sleep(0.2)
            self.assertEqual(status.returncode, int(key == "culprits"), status)
            shown = status_command.run(str(min(pids))).stdout
            of_launcher = status_command.run(str(running.pid), "--json")
            with tempfile.TemporaryDirectory() as folder:
                timeline = self.trace(str(running.pid), folder)
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=60)
        (found,) = json.loads(status.stdout)["jobs"]
        (same,) = json.loads(of_launcher.stdout)["jobs"]
        self.assertEqual(same["pool"], found["pool"])
        for rank in found["ranks"]:
            self.assertRegex(rank["calls"][0]["site"], r"sum_of_ranks\.py:\d+ \(")
        (sums,) = (each for each in same["ranks"][0]["operations"] if each["name"] == "psum")
        self.assertEqual(sums["calls"], 4)
        # The last call of rank 0 waits for rank 1.
        calls = [e["args"] for e in timeline["traceEvents"] if e.get("cat") == "call"]
        self.assertLen(calls, 7)
        self.assertEqual([call["status"] for call in calls].count("under way"), 1)
        self.assertEqual([rank["submitted_calls"] for rank in found["ranks"]], [4, 3])
        self.assertEqual(found["ranks"][0]["waits_for"], [1])
        (blamed,) = found[key]
        self.assertEqual(blamed["rank"], 1)
        self.assertIn(words, blamed["why"])
        self.assertEmpty(found[({"late", "culprits"} - {key}).pop()])
        # A late rank tells the line of the program where it is. A stopped rank does not answer.
        (self.assertRegex if how == "late" else self.assertNotRegex)(
            shown, r"stuck\.py.*, line \d+"
        )

    def trace(self, job, folder):
        path = pathlib.Path(folder, "trace.json")
        subprocess.run(
            [sys.executable, "-m", "jax_cxl", "trace", job, "-o", str(path)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return json.loads(path.read_text())

    @parameterized.parameters("die", "all_die")
    def test_post_mortem(self, how):
        with tempfile.TemporaryDirectory() as folder:
            kept = str(pathlib.Path(folder, "kept"))
            with job.start("failures/stuck.py", how, launcher=("--post-mortem", kept)) as ended:
                _, stderr = ended.communicate(timeout=120)
            self.assertEqual(ended.returncode, 137)
            self.assertIn(f"kept for python -m jax_cxl status: {kept}", stderr)
            self.assertEqual(os.stat(kept).st_mode & 0o777, 0o600)
            status = status_command.run(kept, "--json")
            (found,) = json.loads(status.stdout)["jobs"]
            self.assertEqual({rank["state"] for rank in found["ranks"]}, {"gone"})
            for rank in found["ranks"]:
                self.assertEqual([call["name"] for call in rank["calls"][:3]], ["psum"] * 3)
            if how == "die":
                self.assertIn("culprit: rank 1 (pid ", stderr)
                self.assertEqual([culprit["rank"] for culprit in found["culprits"]], [1])
            self.assertIn("psum: all_reduce sum of 1 int32", status_command.run(kept).stdout)
            calls = [e for e in self.trace(kept, folder)["traceEvents"] if e.get("cat") == "call"]
            self.assertGreaterEqual(len(calls), 6)

    def test_post_mortem_of_ranks_that_are_gone_before_the_launcher_hears_of_their_pool(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = str(pathlib.Path(folder, "kept"))
            launcher = ("--post-mortem", kept)
            with job.start("failures/stuck.py", "all_die", launcher=launcher) as ended:
                (supervisor,) = _wait_for_children(ended.pid, 1)
                ranks = _wait_for_children(supervisor, 2)
                os.kill(supervisor, signal.SIGSTOP)
                try:
                    for rank in ranks:
                        _wait_for_end(rank)
                finally:
                    os.kill(supervisor, signal.SIGCONT)
                ended.communicate(timeout=120)
            (found,) = json.loads(status_command.run(kept, "--json").stdout)["jobs"]
        for rank in found["ranks"]:
            self.assertEqual([call["name"] for call in rank["calls"]], ["psum"] * 3)

    def test_what_only_has_the_name_of_a_pool_is_skipped(self):
        name = f"jax_cxl.skip-{os.getpid()}"
        paths = [
            pathlib.Path("/dev/shm", f"{name}.{kind}") for kind in ("fifo", "sparse", "random")
        ]
        for path in paths:
            self.addCleanup(path.unlink)
        os.mkfifo(paths[0])
        paths[1].write_bytes(b"not all zeros, or the next job would remove it")
        os.truncate(paths[1], 1 << 40)
        paths[2].write_bytes(b"random" * 1000)
        held = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in paths]
        status = status_command.run()
        for fd in held:
            os.close(fd)
        self.assertNotIn("Traceback", status.stderr)
        self.assertNotIn(name, status.stderr + status.stdout)

    def test_a_reader_that_leaves(self):
        with job.start("failures/stuck.py", "late") as running:
            next(line for line in running.stdout if "ready" in line)
            read, write = os.pipe()
            os.close(read)
            command = [sys.executable, "-m", "jax_cxl", "status", str(running.pid), "--json"]
            status = subprocess.run(command, stdout=write, stderr=subprocess.PIPE)
            os.close(write)
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=60)
        self.assertEqual((status.returncode, status.stderr), (128 + signal.SIGPIPE, b""))

    def test_no_job_is_told_from_one_of_another_user(self):
        self.assertIn(
            "no job found on shm:there-is-none", status_command.run("shm:there-is-none").stderr
        )
        with subprocess.Popen(["sleep", "60"]) as sleeper:
            of_sleeper = status_command.run(str(sleeper.pid)).stderr
            sleeper.kill()
        self.assertIn(f"no job found: process {sleeper.pid}", of_sleeper)
        self.assertIn("there is no process 4194305", status_command.run("4194305").stderr)
        with (
            mock.patch.object(pools.os, "listdir", side_effect=PermissionError),
            self.assertRaisesRegex(ValueError, "belongs to user .* may look into its job"),
        ):
            pools.named(str(os.getpid()))

    def test_what_is_no_pool_is_refused(self):
        status = status_command.run(__file__)
        self.assertEqual(status.returncode, 2)
        self.assertIn("is not a jax_cxl pool", status.stderr)
        self.assertEqual(status_command.run("tcp:host").returncode, 2)
        self.assertEqual(status_command.run("/nowhere").returncode, 2)


class LateRankTest(parameterized.TestCase):
    """The job itself warns of a rank that is late again and again."""

    @parameterized.parameters(("last", True), ("each", False))
    def test_a_late_rank_is_named_once(self, who, is_named):
        done = job.run("late_rank.py", who)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = [line for line in done.stderr.splitlines() if "persistently late" in line]
        self.assertLen(said, is_named, done.stderr)
        if is_named:
            self.assertRegex(said[0], r"^\[0\].*persistently late: rank 1 came last to \d+ of the")


if __name__ == "__main__":
    absltest.main()
