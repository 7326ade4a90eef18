"""Kills each process of a job: the others get an error or end, and nothing is left behind."""

import os
import re
import signal
import subprocess
import time
import uuid

import job
from absl.testing import absltest, parameterized

_RANKS = 3


def parents() -> dict[int, int]:
    """Returns the parent of each process of this machine, without zombies."""
    found = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue  # It ended meanwhile.
        if state not in (b"Z", b"X"):
            found[int(entry)] = int(parent)
    return found


def descendants(pid: int) -> set[int]:
    """Returns the ids of all descendants of a process."""
    below = {child for child, parent in parents().items() if parent == pid}
    return below.union(*map(descendants, below))


class DeathsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self._name = f"deaths-{uuid.uuid4().hex[:8]}"

    def start(self, *launcher: str) -> tuple[subprocess.Popen, dict[int, int], set[int]]:
        """Starts a job; returns it, the process id of each rank, and those of all processes."""
        running = job.start(
            "failures/until_lost.py",
            f"--pool=shm:{self._name}",
            processes=_RANKS,
            launcher=launcher,
        )
        self.addCleanup(running.kill)
        ranks: dict[int, int] = {}
        while len(ranks) < _RANKS:
            line = running.stdout.readline()
            self.assertTrue(line, "the job ended before it was ready")
            if found := re.search(r"ready (\d) (\d+)", line):
                ranks[int(found[1])] = int(found[2])
        return running, ranks, descendants(running.pid)

    def wait_until_gone(self, pids: set[int], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while left := pids & parents().keys():
            self.assertLess(time.monotonic(), deadline, f"{left} live {seconds} s later")
            time.sleep(0.01)

    def end(self, running: subprocess.Popen, pids: set[int]) -> tuple[str, str]:
        """Returns the output of the job, once all of its processes are gone."""
        stdout, stderr = running.communicate(timeout=60)
        self.wait_until_gone(pids, 30)
        self.assertEmpty(job.pool_files(self._name))
        return stdout, stderr

    @parameterized.product(victim=[0, 1], launcher=[(), ("--go-on",)])
    def test_rank(self, victim, launcher):
        running, ranks, pids = self.start(*launcher)
        os.kill(ranks[victim], signal.SIGKILL)
        # The others raise PeerLostError and exit. Without --go-on, JAX may end them sooner.
        self.wait_until_gone(set(ranks.values()), job.SOON)
        stdout, stderr = self.end(running, pids)
        self.assertIn(f"rank {victim} was killed by SIGKILL", stderr)
        for rank in ranks.keys() - {victim} if launcher else ():
            self.assertRegex(stdout, rf"\[{rank}\] lost rank \d")

    @parameterized.parameters((), ("--go-on",), ("--restarts=3",))
    def test_launcher(self, *launcher):
        running, _, pids = self.start(*launcher)
        running.kill()
        self.wait_until_gone(pids, 30)
        self.end(running, pids)

    @parameterized.parameters((), ("--go-on",))
    def test_supervisor(self, *launcher):
        running, _, pids = self.start(*launcher)
        (supervisor,) = (pid for pid in pids if parents()[pid] == running.pid)
        os.kill(supervisor, signal.SIGKILL)
        self.wait_until_gone(pids, 30)
        _, stderr = self.end(running, pids)
        self.assertEqual(running.returncode, 137)
        self.assertIn("the supervisor was killed by signal 9", stderr)

    @parameterized.parameters((), ("--go-on",))
    def test_all_ranks_at_once(self, *launcher):
        running, ranks, pids = self.start(*launcher)
        # Stop all processes first: a process that sees another one die would end by itself.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in ranks.values():
                os.kill(pid, number)
        self.end(running, pids)
        self.assertEqual(running.returncode, 137)

    def test_coordination_service(self):
        running, ranks, pids = self.start("--go-on")
        supervisor = parents()[ranks[0]]
        (service,) = (pid for pid in pids - set(ranks.values()) if parents()[pid] == supervisor)
        os.kill(service, signal.SIGKILL)
        _, stderr = self.end(running, pids)
        self.assertEqual(running.returncode, 1)
        self.assertIn("the coordination service failed", stderr)


if __name__ == "__main__":
    absltest.main()
