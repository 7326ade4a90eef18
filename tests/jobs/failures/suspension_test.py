"""Ranks that are stopped together, as by Slurm's suspend, continue without an error."""

import os
import pathlib
import re
import signal
import tempfile
import time

import job
from absl.testing import absltest

_RANKS = 3
_TIMEOUT = 5
_STOPPED = 2 * _TIMEOUT


class SuspensionTest(absltest.TestCase):
    def test_time_in_which_all_are_stopped_does_not_count(self):
        with tempfile.TemporaryDirectory() as folder:
            go_on = pathlib.Path(folder, "go_on")
            running = job.start(
                "failures/stopped_together.py",
                str(go_on),
                processes=_RANKS,
                environment={"JAX_CXL_TIMEOUT": str(_TIMEOUT), "JAX_CXL_WARN_AFTER": "1"},
            )
            self.addCleanup(running.kill)
            ready = (re.search(r"ready (\d+)", line) for line in running.stdout)
            found = (int(match[1]) for match in ready if match)
            ranks = [next(found) for _ in range(_RANKS)]
            for rank in ranks:
                os.kill(rank, signal.SIGSTOP)
            time.sleep(_STOPPED)
            for rank in ranks:
                os.kill(rank, signal.SIGCONT)
            time.sleep(1)  # Long enough for those that wait to look at their clocks.
            go_on.touch()
            stdout, stderr = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 0, stderr)
        self.assertEqual(stdout.count(f"sum {sum(range(_RANKS))}"), _RANKS, stdout)


if __name__ == "__main__":
    absltest.main()
