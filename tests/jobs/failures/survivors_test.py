"""After a process dies, the others raise an error and end soon, even without a launcher."""

import os
import subprocess
import sys
import time

import job
import pytest
import two_kernels
from absl.testing import absltest, parameterized


class SurvivorsTest(parameterized.TestCase):
    @parameterized.parameters((3, 2), (2, 0))
    @pytest.mark.sample(2)
    def test_end_with_their_error(self, processes, victim):
        port = str(two_kernels.free_port())
        program = str(job.PROGRAMS / "failures/lose_one.py")
        pool = f"shm:survivors-{os.getpid()}-{victim}?size=192MiB"
        running = [
            subprocess.Popen(
                [sys.executable, program, port, str(process), str(processes), str(victim), pool],
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for process in range(processes)
        ]
        for process in running:
            self.addCleanup(process.kill)
        running[victim].wait(timeout=120)
        died = time.monotonic()
        for number, process in enumerate(running):
            stdout, stderr = process.communicate(timeout=60)
            if number == victim:
                continue
            self.assertLess(time.monotonic() - died, 2 + 5 * job.SOON, stdout + stderr)
            if victim == 0:
                continue  # JAX ends the others when the host of its coordination service dies.
            self.assertEqual(process.returncode, 1, stdout + stderr)
            self.assertRegex(stderr, r"PeerLostError: rank \d.* rank 2 |PeerLostError: rank 2 ")
            self.assertIn("other handlers ran", stdout)


if __name__ == "__main__":
    absltest.main()
