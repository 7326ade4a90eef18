"""The environment of ranks: waiting for the coordination service."""

import os
import socket
import threading
import time
from unittest import mock

from absl.testing import absltest, parameterized

from jax_cxl._commands.launch import cli
from jax_cxl._job.launched import environment


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class WaitForCoordinatorTest(parameterized.TestCase):
    def wait(self, rank: int, port: int, go_on: bool = False) -> float:
        """Waits for the coordination service as a rank does; returns the seconds that it waited."""
        job = cli._parse(["--devices-per-process=1", *["--go-on"] * go_on, __file__])
        variables = job.environment({}, rank=rank, port=port)
        with mock.patch.dict(os.environ, variables):
            start = time.monotonic()
            environment.wait_for_coordinator()
            return time.monotonic() - start

    @parameterized.parameters((1, False), (0, True), (1, True))
    def test_waits_until_the_service_listens(self, rank, go_on):
        port = _free_port()
        service = socket.socket()
        self.addCleanup(service.close)
        service.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        service.bind(("127.0.0.1", port))
        later = threading.Timer(0.3, service.listen)
        later.start()
        self.addCleanup(later.join)
        waited = self.wait(rank, port, go_on)
        self.assertBetween(waited, 0.2, 5)

    def test_the_process_that_starts_the_service_does_not_wait(self):
        self.assertLess(self.wait(0, _free_port()), 5)

    def test_ends_without_a_service(self):
        with mock.patch.object(environment, "_COORDINATOR_SECONDS", 0.2):
            self.assertBetween(self.wait(1, _free_port()), 0.2, 5)


if __name__ == "__main__":
    absltest.main()
