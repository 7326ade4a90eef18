"""Runs launchers in copies of a process that has imported JAX already.

    python tests/helpers/launch_server.py SOCKET MODULE,MODULE...

Importing JAX takes a second of CPU time, which is most of what a job of a small test needs. So a
server imports the modules once, and forks for each job. The fork is the job's launcher, and forks
again for the ranks (forked_launch.py). Two jobs of one server have the same hash seed.
"""

import array
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import forked_launch

from jax_cxl._job import processes

# A request is the job's command line, folder and environment. With it come three files: the job's
# stdout and stderr, and a socket for the answers. The answers are three numbers: the launcher's
# process id, its status, and how many processes it has left behind.
_MOST_BYTES = 1 << 20
_NUMBER = "q"


class Launcher:
    """A running launcher, with the part of `subprocess.Popen` that tests need.

    Attributes:
      pid: its process id.
      stdout: its output, a text file.
      stderr: its errors, a text file.
      returncode: its status, None until `wait` or `communicate` has seen its end.
      left_behind: the number of processes that outlived the job.
    """

    def __init__(self, answers: socket.socket, stdout: int, stderr: int):
        self.stdout = open(stdout, encoding="utf-8")  # noqa: SIM115 - __exit__ closes both
        self.stderr = open(stderr, encoding="utf-8")  # noqa: SIM115
        self.pid = _receive(answers)
        self.returncode: int | None = None
        self.left_behind = 0
        self._answers = answers
        self._rest: list[concurrent.futures.Future[str]] = []

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()

    def send_signal(self, number: int) -> None:
        """Sends the launcher a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Asks the launcher to end the job."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the launcher."""
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Waits for the launcher's end, and returns its status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(_receive(self._answers))
            self.left_behind = _receive(self._answers)
            self._answers.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits until all processes that write to the output have ended, and returns the output.

        Raises:
          subprocess.TimeoutExpired: the processes have not ended in time. The caller may call this
            again.
        """
        if not self._rest:
            readers = concurrent.futures.ThreadPoolExecutor(2)
            self._rest = [readers.submit(file.read) for file in (self.stdout, self.stderr)]
            readers.shutdown(wait=False)
        if concurrent.futures.wait(self._rest, timeout).not_done:
            raise subprocess.TimeoutExpired("the launcher", timeout or 0)
        self.wait()
        stdout, stderr = (rest.result() for rest in self._rest)
        return stdout, stderr


class Server:
    """A server for jobs that all import the same modules, with the same settings of JAX."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), ",".join(modules)],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Launcher:
        """Starts a launcher with these arguments, in this process's folder."""
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe(), os.pipe()]
        request = json.dumps([arguments, os.getcwd(), dict(environment)]).encode()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        socket.send_fds(self._socket, [request], [*(end for _, end in pipes), theirs.fileno()])
        theirs.close()
        for _, end in pipes:
            os.close(end)
        return Launcher(answers, *(end for end, _ in pipes))

    def close(self) -> None:
        """Ends the server."""
        self._socket.close()
        self._process.wait()


def _send(answers: socket.socket, number: int) -> None:
    answers.send(array.array(_NUMBER, [number]))


def _receive(answers: socket.socket) -> int:
    (number,) = array.array(_NUMBER, answers.recv(8))
    return number


def _serve(requests: socket.socket) -> None:
    """Forks for each request, until the test process closes its end of the socket."""
    # With SIGCHLD ignored, the kernel reaps ended children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, files, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
        if not request:
            return
        if forked_launch.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            _watch(json.loads(request), *files)
        for file in files:
            os.close(file)


def _watch(request: Any, stdout: int, stderr: int, answers_file: int) -> None:
    """Starts the launcher in another fork, and sends the three answers to the test process."""
    answers = socket.socket(fileno=answers_file)
    processes.become_subreaper()
    launcher = forked_launch.fork()
    if launcher == 0:
        answers.close()
        _launch(request, stdout, stderr)
    os.close(stdout)
    os.close(stderr)
    # If the test process has ended, nobody receives the answers.
    with contextlib.suppress(OSError):
        _send(answers, launcher)
        _send(answers, os.waitpid(launcher, 0)[1])
        _send(answers, len(processes.descendants()))
    os._exit(0)


def _launch(request: Any, stdout: int, stderr: int) -> None:
    """Runs the launcher in this process, and then ends the process."""
    arguments, folder, environment = request
    for file, target in ((stdout, 1), (stderr, 2)):
        os.dup2(file, target)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    forked_launch.launch_and_exit(arguments)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _requests:
        forked_launch.import_modules(sys.argv[2])
        _serve(_requests)
