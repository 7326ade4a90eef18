"""Runs launchers in copies of a process that has imported JAX already.

    python tests/launch_server.py SOCKET MODULE,MODULE...

Importing JAX takes a second of a processor, which is most of what a job of a small test needs. So a
server imports the modules once, and forks for each job. The copy is the job's launcher, and forks
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

# A request is the job's command line, folder and environment. With it come three files: the job's
# stdout and stderr, and a socket for the answers. The answers are two numbers: the launcher's
# process id and its status.
_MOST_BYTES = 1 << 20
_NUMBER = "q"


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

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs a launcher. Waits until all processes that write to its output have ended.

        Raises:
          subprocess.TimeoutExpired: the launcher did not end in time, and was asked to.
        """
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe(), os.pipe()]
        request = json.dumps([arguments, os.getcwd(), dict(environment)]).encode()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        socket.send_fds(self._socket, [request], [*(end for _, end in pipes), theirs.fileno()])
        theirs.close()
        for _, end in pipes:
            os.close(end)
        with answers, concurrent.futures.ThreadPoolExecutor() as readers:
            outputs = [readers.submit(_read, end) for end, _ in pipes]
            launcher = _receive(answers)
            late = concurrent.futures.wait(outputs, timeout).not_done
            if late:
                os.kill(launcher, signal.SIGTERM)
            stdout, stderr = (output.result() for output in outputs)
            if late:
                raise subprocess.TimeoutExpired(list(arguments), timeout, stdout, stderr)
            status = _receive(answers)
        return subprocess.CompletedProcess(
            list(arguments), os.waitstatus_to_exitcode(status), stdout, stderr
        )

    def close(self) -> None:
        """Ends the server."""
        self._socket.close()
        self._process.wait()


def _read(end: int) -> str:
    with open(end, encoding="utf-8") as file:
        return file.read()


def _send(answers: socket.socket, number: int) -> None:
    answers.send(array.array(_NUMBER, [number]))


def _receive(answers: socket.socket) -> int:
    (number,) = array.array(_NUMBER, answers.recv(8))
    return number


def _serve(requests: socket.socket) -> None:
    """Forks for each request, until the test process closes its end of the socket."""
    # The kernel removes ended children.
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
    """Starts the launcher in another copy, and tells its process id and its status."""
    answers = socket.socket(fileno=answers_file)
    launcher = forked_launch.fork()
    if launcher == 0:
        answers.close()
        _launch(request, stdout, stderr)
    os.close(stdout)
    os.close(stderr)
    # The test process may have ended.
    with contextlib.suppress(OSError):
        _send(answers, launcher)
        _send(answers, os.waitpid(launcher, 0)[1])
    os._exit(0)


def _launch(request: Any, stdout: int, stderr: int) -> None:
    """Runs the launcher in this process, and ends it."""
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
