"""Launchers under test: what the tests of `python -m jax_cxl.launch` share."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

from absl.testing import parameterized

PROGRAMS = pathlib.Path(__file__).parent / "programs"
MARK = "JAX_CXL_LAUNCH_TEST"


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
        """Returns all living processes that this test's launchers, or their children, started."""
        mark = f"{MARK}={self._mark}".encode()
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
        command = [str(PROGRAMS / a) if a.endswith(".py") else a for a in arguments]
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        with subprocess.Popen(
            [sys.executable, "-m", "jax_cxl.launch", *command],
            env={**os.environ, MARK: self._mark, **(extra or {})},
            text=True,
            **options,
        ) as launcher:
            try:
                yield launcher
            except BaseException:
                self._kill_all()  # Otherwise leaving would wait for a job that never ends.
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
