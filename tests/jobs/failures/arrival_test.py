"""Without a launcher: if a process does not join the job, the errors of the others name it."""

import os
import socket
import subprocess
import sys
import tempfile
import time

import job
import pytest
from absl.testing import absltest, parameterized


class ArrivalTest(parameterized.TestCase):
    def start(self, process: int, how: str, port: int) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [
                *(sys.executable, job.PROGRAMS / "failures/arrival.py", f"--process={process}"),
                *(f"--port={port}", f"--how={how}"),
            ],
            env=os.environ
            | {
                "JAX_PLATFORMS": "cpu",
                "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}",
                "JAX_CXL_CONNECT_TIMEOUT": "2" if how == "late" else "600",
            },
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self.addCleanup(started.stdout.close)
        self.addCleanup(started.wait)
        self.addCleanup(started.kill)
        return started

    @parameterized.parameters(
        ("die", r"process 1 \(pid \d+ on host \S+\) ended before jax_cxl had started"),
        ("end", r"process 1 .* its program ended before it called .* \(it ended normally\)"),
        ("raise", r"process 1 .* its program ended before it called .* \(ValueError: on purpose\)"),
        ("refuse", r"process 1 .* ValueError: JAX_CXL_TIMEOUT must be greater than 0, got nan"),
        ("late", r"process 1 did not call jax_cxl.initialize\(\) within JAX_CXL_CONNECT_TIMEOUT"),
        (
            "chain",
            r"process 1 .* could not start jax_cxl: .* process 2 .* ended before jax_cxl had",
        ),
        (
            "version",  # Process 1 may find the difference first, and report it.
            r"(process 1 .* could not start jax_cxl: .*)?"
            r"the processes run different versions \(process 0: .*; process 1: .* jax 0\.1\.0, ",
        ),
        ("come", None),
        ("again", None),
    )
    @pytest.mark.sample(3)
    def test_others_name_it(self, how, says):
        self.check(how, says)

    def test_they_disagree_about_their_number(self):
        # Process 1 may find the difference first, and report it.
        self.check(
            "count",
            r"(process 1 .* could not start jax_cxl: )?process (0 was started as one of 2"
            r" processes, and process 1 .* as one of 3|1 was started as one of 3 .* as one of 2):"
            r" pass the same num_processes",
        )

    def check(self, how, says):
        with socket.socket() as reservation:
            reservation.bind(("127.0.0.1", 0))
            port = reservation.getsockname()[1]
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by the next line
        self.addCleanup(self._stderr.close)
        began = time.monotonic()
        first, *_ = [
            self.start(process, how, port) for process in range(3 if how == "chain" else 2)
        ]
        stdout, _ = first.communicate(timeout=90)
        self._stderr.seek(0)
        if says is None:
            self.assertEqual(stdout, "initialized\n", self._stderr.read())
        else:
            self.assertRegex(stdout, f"^caught {says}", self._stderr.read())
            # JAX's coordination service would report the absence only after 100 s.
            self.assertLess(time.monotonic() - began, 80)


if __name__ == "__main__":
    absltest.main()
