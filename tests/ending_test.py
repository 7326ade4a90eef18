"""However a job ends, its pool is gone and its peers know."""

import os
import re
import signal
import subprocess
import sys
import uuid

import job
from absl.testing import absltest, parameterized

from jax_cxl import _core

_POOL = {
    "kind": "shm",
    "bytes": 8 << 20,
    "devices_per_path": 1,
    "offset": 0,
    "coherence": "coherent",
    "seed": 0,
    "leave_out": "",
    "world_size": 1,
}
# Not in a fork of this process, whose threads may hold locks.
_CREATE_AND_DIE = f"""
import os, signal, sys
from jax_cxl import _core
pool = _core.Pool.create(**{_POOL}, paths=[sys.argv[1]])  # Its destructor would unlink it.
os.kill(os.getpid(), signal.SIGKILL)
"""


class EndingTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self._name = f"ending-{uuid.uuid4().hex[:8]}"

    def start(self, how: str, **options):
        return job.start("ending.py", f"--how={how}", f"--pool=shm:{self._name}", **options)

    def wait_until_running(self, running) -> None:
        for line in running.stdout:
            if "communicated" in line:
                return
        self.fail(f"the job ended before it communicated:\n{running.stderr.read()}")

    def check_gone(self) -> None:
        self.assertEmpty(job.pool_files(self._name))

    @parameterized.parameters(("normal", 0), ("exception", 1), ("kill_one", 137))
    def test_ends_by_itself(self, how, status):
        with self.start(how) as ended:
            ended.communicate(timeout=120)
        self.assertEqual(ended.returncode, status)
        self.check_gone()

    @parameterized.parameters(
        (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)
    )
    def test_launcher_gets(self, number, status):
        with self.start("wait") as running:
            self.wait_until_running(running)
            # The file has no name by now, so that no ending can leave it behind.
            self.check_gone()
            running.send_signal(number)
            running.communicate(timeout=120)
        self.assertEqual(running.returncode, status)
        self.check_gone()

    def test_peer_that_leaves_is_named_soon(self):
        with self.start("leave_one") as ended:
            stdout, stderr = ended.communicate(timeout=120)
        self.assertEqual(ended.returncode, 7, stderr)
        found = re.search(r"after ([0-9.]+) s: rank 1 \(pid \d+ on host", stdout)
        self.assertIsNotNone(found, stdout)
        self.assertLess(float(found.group(1)), job.SOON)
        self.check_gone()


def _create(name: str) -> _core.Pool:
    return _core.Pool.create(**_POOL, paths=[name])


class SweepTest(absltest.TestCase):
    def test_leftover_of_a_dead_job_goes_and_a_locked_one_stays(self):
        name = f"sweep-{uuid.uuid4().hex[:8]}"
        leftover = f"/dev/shm/jax_cxl.{name}.dead"
        os.close(os.open(leftover, os.O_CREAT | os.O_EXCL, 0o600))
        # A pool that exists and still has its name, as between creation and unlink.
        living = _create(f"{name}.living")
        self.assertLen(job.pool_files(name), 2)
        self.assertGreaterEqual(_core.sweep_leftovers(), 1)
        self.assertEqual(job.pool_files(name), [f"jax_cxl.{name}.living"])
        living.unlink()
        self.assertEmpty(job.pool_files(name))

    def test_job_killed_before_it_unlinks_its_pool(self):
        name = f"sweep-{uuid.uuid4().hex[:8]}"
        killed = subprocess.run([sys.executable, "-c", _CREATE_AND_DIE, name], check=False)
        self.assertEqual(killed.returncode, -signal.SIGKILL)
        self.assertLen(job.pool_files(name), 1)
        _core.sweep_leftovers()
        self.assertEmpty(job.pool_files(name))


if __name__ == "__main__":
    absltest.main()
