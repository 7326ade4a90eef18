"""`python -m jax_cxl status` of pools without a launcher: kept after a failure, or in files."""

import fcntl
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import job
import pytest
import status_command
from absl.testing import absltest, parameterized


class KeptPoolTest(parameterized.TestCase):
    """Pools with keep=on-failure, of jobs without the launcher."""

    def run_job(self, name: str, killed: tuple[int, ...], how: str = "end") -> None:
        with socket.socket() as reservation:
            reservation.bind(("127.0.0.1", 0))
            port = reservation.getsockname()[1]
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, job.PROGRAMS / "without_launcher.py", f"--process={process}"),
                    *(f"--port={port}", f"--how={how}", f"--pool=shm:{name}?keep=on-failure"),
                ],
                env=os.environ
                | {"JAX_PLATFORMS": "cpu", "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for process in range(2)
        ]
        for process in processes:
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "ready\n")
        # Jobs of other tests remove pools that no process has locked. This lock keeps the pool, as
        # if a process still used it.
        path = pathlib.Path("/dev/shm", f"jax_cxl.{name}")
        self._file = path.open("rb")
        self.addCleanup(self._file.close)
        fcntl.flock(self._file, fcntl.LOCK_SH)
        for number in killed:
            processes[number].kill()
        for process in processes:
            process.stdin.close()
        for process in processes:
            process.wait(timeout=60)
            process.stdout.close()

    @parameterized.parameters(((0, 1), "end"), ((1,), "fail"))
    @pytest.mark.sample(2)
    def test_of_a_job_that_failed(self, killed, how):
        name = f"kept-{os.getpid()}-{len(killed)}"
        self.run_job(name, killed, how)
        self.assertLen(job.pool_files(name), 1)
        (found,) = json.loads(status_command.run(f"shm:{name}", "--json").stdout)["jobs"]
        self.assertEqual({rank["state"] for rank in found["ranks"]}, {"gone"})
        for rank in found["ranks"]:
            self.assertEqual(rank["calls"][0]["name"], "psum")
        self.assertIn(name, status_command.run().stdout)
        self._file.close()
        subprocess.run([sys.executable, "-m", "jax_cxl", "clean"], check=True)
        self.assertEmpty(job.pool_files(name))

    def test_of_a_job_that_ended_well(self):
        name = f"kept-{os.getpid()}-0"
        self.run_job(name, ())
        self.assertEmpty(job.pool_files(name))


class FilePoolTest(parameterized.TestCase):
    """Pools in files, which `status` finds only by the memory mappings of the job's processes."""

    @parameterized.parameters(("", False), ("&offset=2MiB", True))
    @pytest.mark.sample(2)
    def test_is_found_without_an_argument(self, offset, kept):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        path = pathlib.Path(folder, "pool")
        if kept:  # It was there before, and keeps its name.
            path.touch(mode=0o600)
        with subprocess.Popen(
            [sys.executable, job.PROGRAMS / "wait_in_pool.py", f"file:{path}?size=16MiB{offset}"],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            self.assertEqual(running.stdout.readline(), "initialized\n")
            for target in ((), (str(running.pid),)):
                status = status_command.run(*target, "--json")
                found = {entry["pool"]: entry for entry in json.loads(status.stdout)["jobs"]}
                self.assertIn(str(path), found, status.stderr)
                self.assertEqual(found[str(path)]["ranks"][0]["pid"], running.pid)
            running.stdin.close()


if __name__ == "__main__":
    absltest.main()
