"""However a job ends, its pool is removed; peers of a rank that leaves early get an error."""

import fcntl
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import uuid

import job
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from jax_cxl import _core

_POOL = {
    "kind": "shm",
    "bytes": 8 << 20,
    "devices_per_path": 1,
    "offset": 0,
    "coherence": "coherent",
    "world_size": 1,
}
# This runs in a new interpreter. A fork could wait forever for a lock that a thread of this process
# holds.
_CREATE_AND_DIE = f"""
import os, signal, sys
from jax_cxl import _core
pool = _core.Pool.create({_POOL} | {{"paths": [sys.argv[1]]}})  # Its destructor would unlink it.
os.kill(os.getpid(), signal.SIGKILL)
"""


class EndingTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self._name = f"ending-{uuid.uuid4().hex[:8]}"

    def start(self, how: str, **options):
        return job.start(
            "failures/ending.py", f"--how={how}", f"--pool=shm:{self._name}", **options
        )

    def wait_until_running(self, running) -> None:
        for line in running.stdout:
            if "communicated" in line:
                return
        self.fail(f"the job ended before it communicated:\n{running.stderr.read()}")

    def check_gone(self) -> None:
        self.assertEmpty(job.pool_files(self._name))

    # "kill_a_creator" kills a rank that has just created another pool, as ranks do in a regroup.
    # The file of this pool still has its name, because the other ranks have not opened the pool.
    @parameterized.parameters(
        ("normal", 0), ("exception", 1), ("kill_one", 137), ("kill_a_creator", 137)
    )
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
            # The pool's file has no name by now, so that no ending can leave it behind.
            self.check_gone()
            running.send_signal(number)
            running.communicate(timeout=120)
        self.assertEqual(running.returncode, status)
        self.check_gone()

    @parameterized.parameters(
        ("os_exit", "PeerLostError", "is gone: its process ended"),
        ("sys_exit", "PeerLostError", "ended with status 3; rank 0"),
        ("message", "PeerLostError", "ended with status 1: no such file; rank 0"),
        ("raise_exit", "PeerLostError", "ended with status 3; rank 0"),
        ("catch_exit", "MismatchError", "ended normally, after 1 collectives"),
        ("shut_down", "MismatchError", r"called jax_cxl.shutdown\(\) after 1 collectives and"),
    )
    @pytest.mark.sample(4)
    def test_peer_that_leaves_is_named_soon(self, how, error, says):
        # The test is about the end of the interpreter, so ranks are not forks.
        with self.start(how, launcher=("--grace=0.5",), forked=False) as ended:
            stdout, _ = ended.communicate(timeout=120)
        found = re.search(
            rf"after ([0-9.]+) s: {error}: rank 1 \(pid \d+ on host \S+\) {says}", stdout
        )
        self.assertIsNotNone(found, stdout)
        self.assertLess(float(found.group(1)), job.SOON)
        self.check_gone()


def _create(name: str) -> _core.Pool:
    return _core.Pool.create(_POOL | {"paths": [name]})


class SweepTest(absltest.TestCase):
    def leave_pool(self, program: str = _CREATE_AND_DIE) -> str:
        """Returns the name of a pool whose job has been killed."""
        for _ in range(6):  # A job of another test may remove the pool first.
            name = f"sweep-{uuid.uuid4().hex[:8]}"
            killed = subprocess.run([sys.executable, "-c", program, name], check=False)
            self.assertEqual(killed.returncode, -signal.SIGKILL)
            if job.pool_files(name):
                return name
        self.fail("nothing was left")

    def assert_sweep_leaves(self, name: str, left: list[str]) -> None:
        """Sweeps until only the files `left` remain.

        A single sweep is not always enough: it skips a leftover that a job of another test is
        removing.
        """
        end = time.monotonic() + 10
        while job.pool_files(name) != left and time.monotonic() < end:
            _core.sweep_leftovers()
        self.assertEqual(job.pool_files(name), left)

    def test_leftover_of_a_dead_job_goes_and_a_locked_one_stays(self):
        name = f"sweep-{uuid.uuid4().hex[:8]}"
        leftover = f"/dev/shm/jax_cxl.{name}.dead"
        # This pool of a living job still has its name, as in the moment between creation and
        # unlink.
        living = _create(f"{name}.living")
        with open(leftover, "x") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # A job that starts meanwhile must not remove it.
            self.assertLen(job.pool_files(name), 2)
        self.assert_sweep_leaves(name, [f"jax_cxl.{name}.living"])
        living.unlink()
        self.assertEmpty(job.pool_files(name))

    def test_what_is_no_pool_stays(self):
        name = f"sweep-{uuid.uuid4().hex[:8]}"
        array = io.BytesIO()
        np.save(array, np.zeros(9))
        pool = _create(f"{name}.read")
        fd, offset = pool.opened_file()
        # --post-mortem writes files of this form. Such a file begins with the header of a pool, but
        # is not a pool.
        recorders = _core.read_job_record(fd, offset, "pool").to_bytes()
        contents = {"npy": array.getvalue(), "text": b"results", "recorders": recorders}
        files = [f"jax_cxl.{name}.{kind}" for kind in contents]
        for file, content in zip(files, contents.values(), strict=True):
            # A job that starts meanwhile would remove a file that is still empty.
            unnamed = pathlib.Path("/dev/shm", f"{name}.unnamed")
            unnamed.write_bytes(content)
            unnamed.rename(f"/dev/shm/{file}")
        pool.unlink()
        _core.sweep_leftovers()
        left = job.pool_files(name)
        for file in files:
            os.unlink(f"/dev/shm/{file}")
        self.assertCountEqual(left, files)

    def test_pool_behind_an_offset_goes(self):
        name = self.leave_pool(_CREATE_AND_DIE.replace("'offset': 0", "'offset': 2097152"))
        self.assert_sweep_leaves(name, [])

    def test_initialize_says_what_it_removes(self):
        program = f"""
import subprocess, sys, jax, jax_cxl
jax.devices()  # initialize needs them before it looks for pools
subprocess.run([sys.executable, "-c", {_CREATE_AND_DIE!r}, sys.argv[1]], check=False)
jax_cxl.initialize("shm:?size=8MiB")
"""
        for _ in range(6):  # A job of another test may remove the files first.
            name = f"sweep-{uuid.uuid4().hex[:8]}"
            done = subprocess.run(
                [sys.executable, "-c", program, name], capture_output=True, text=True, check=True
            )
            self.assert_sweep_leaves(name, [])
            if f"removed /dev/shm/jax_cxl.{name}, the pool of a dead job" in done.stderr:
                return
        self.fail(done.stderr)

    def test_job_killed_before_it_unlinks_its_pool(self):
        name = self.leave_pool()
        self.assert_sweep_leaves(name, [])


if __name__ == "__main__":
    absltest.main()
