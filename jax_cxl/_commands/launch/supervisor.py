"""Starts the ranks of a job, passes on their output and ends them.

The supervisor has a single thread, because the kernel sends a rank its parent-death signal when the
thread that started the rank ends. The supervisor is a subreaper: if a rank leaves processes behind,
in any session, they become the supervisor's children. It returns when it has no children left.
"""

import contextlib
import errno
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable

from jax_cxl._commands.launch import cores, output, rank
from jax_cxl._commands.launch.job import Job
from jax_cxl._commands.status import post_mortem
from jax_cxl._job import processes
from jax_cxl._job.launched import board, environment

_POLL_SECONDS = 0.05  # While ending, how often to look again for descendants.


class Supervisor:
    """The state of a running job. It ends when the launcher, the parent of this process, dies."""

    def __init__(self, job: Job, launcher: int):
        self._job = job
        self._launcher = launcher
        self._sinks = output.sinks()
        self._sources: list[output.Source] = []
        self._ranks: dict[int, int] = {}  # Process id -> rank, of the ranks that run.
        self._coordinator: int | None = None  # Process id.
        # Descriptor of a socket -> the socket, from which the reports of a rank come
        # (environment.reports), and the rank's process id.
        self._reports: dict[int, tuple[socket.socket, int]] = {}
        self._restarts = 0
        self._stopped = False  # Whether a signal, not the end of a rank, has ended the job.
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        self._succeeded: int | None = None  # The first rank that has ended with status 0.
        self._killed = False  # Whether a signal has ended a rank.
        self._ending = False
        self._ended: set[int] = set()  # Process ids of the ranks that this process has ended.
        self._kill_at = math.inf
        # Process id of a rank that fails while the others continue -> its status, and when to kill
        # it.
        self._failing: dict[int, tuple[int, float]] = {}
        self._childless = False
        self._pool = post_mortem.HeldPool()
        self._board = board.Board.new(self._job.n)

    def run(self, signals: Iterable[signal.Signals]) -> int:
        """Runs the job to its end. Returns the status of the first rank that failed, or 0.

        Call it in a process of its own without threads, in which `signals`, which end the job, are
        blocked. If a signal ended that rank or the job, the status is 128 plus the signal's number.
        """
        receiver, sender = socket.socketpair()
        receiver.setblocking(False)
        sender.setblocking(False)
        # Signal numbers come through the socket, so that poll() returns and no signal is missed.
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        for handled in (*signals, signal.SIGCHLD):
            signal.signal(handled, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        processes.become_subreaper()
        processes.die_with(self._launcher, signal.SIGTERM)
        self._receiver = receiver
        self._attempt()
        while self._status and not self._stopped and self._restarts < self._job.restarts:
            self._restarts += 1
            self._board.close()
            self._reset()
            self._say(f"restart {self._restarts} of {self._job.restarts}")
            self._attempt()
        return self._status

    def _attempt(self) -> None:
        # Reserve the port, so that no other process takes it before the coordination service
        # listens on it. The service shares the port by SO_REUSEPORT.
        with socket.socket() as reservation:
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reservation.bind(("127.0.0.1", 0))
            self._port = reservation.getsockname()[1]
            self._start()
            while not self._finished():
                self._handle(self._timeout())
        if self._killed:
            self._pool.remove_leftovers()
        if self._status and not self._stopped:
            self._pool.report(self._job.post_mortem, self._ended)

    def _start(self) -> None:
        """Starts the coordination service, if needed, and the ranks."""
        try:
            if self._job.go_on:
                self._start_coordinator()
            for number in range(self._job.n):
                # Handle signals, output and ended ranks while the other ranks start.
                if number > 0:
                    self._handle(0)
                if self._ending:
                    break
                self._start_rank(number)
        except OSError as error:
            self._status = 1
            remedy = "; raise the limit on open files (ulimit -n)" * (error.errno == errno.EMFILE)
            self._end(signal.SIGTERM, f"cannot start all ranks: {error}{remedy}")

    def _start_coordinator(self) -> None:
        arguments = map(str, (os.getpid(), self._port, self._job.n))
        child = subprocess.Popen(
            [sys.executable, "-m", "jax_cxl._commands.launch.coordinator", *arguments],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._coordinator = child.pid
        child.returncode = 0

    def _start_rank(self, number: int) -> None:
        job = self._job
        # A single rank uses the streams of the launcher, as its lines need no prefix.
        piped = job.n > 1
        marks = [b"" if job.no_prefix else output.prefix(number, sink) for sink in self._sinks]
        report, reporter = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        report.setblocking(False)
        parent, kind = os.getpid(), rank.MODULE if job.m else rank.SCRIPT
        arguments = [*map(str, (parent, reporter.fileno(), self._board.fd)), kind, *job.command]
        available = os.sched_getaffinity(0)
        try:
            if job.bind_cores:  # The rank inherits the cores of this process.
                os.sched_setaffinity(0, cores.share(available, number, job.n))
            child = subprocess.Popen(
                [sys.executable, "-m", "jax_cxl._commands.launch.rank", *arguments],
                env=job.environment(
                    os.environ, rank=number, port=self._port, restarts=self._restarts
                ),
                stdin=None if number == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else None,
                stderr=subprocess.PIPE if piped else None,
                pass_fds=[reporter.fileno(), self._board.fd],
                # Each rank gets a process group of its own, so that Ctrl-C of the terminal reaches
                # the launcher only. All ranks stay in one session, so that a rank that waits can
                # give its core to another rank: Linux divides a core between sessions, and a thread
                # that yields gives the core only to threads of its session.
                process_group=0,
            )
        finally:
            if job.bind_cores:
                os.sched_setaffinity(0, available)
            reporter.close()
        self._ranks[child.pid] = number
        self._reports[report.fileno()] = report, child.pid
        streams = (child.stdout, child.stderr)
        for stream, sink, mark in zip(streams, self._sinks, marks, strict=True):
            if stream is None:
                continue
            # Keep the descriptor without the file object, which would buffer.
            fd = os.dup(stream.fileno())
            stream.close()
            self._sources.append(output.Source(fd, sink, mark, live=number == 0))
        # This process waits for all its children itself, so Popen must not wait for this one.
        child.returncode = 0

    def _finished(self) -> bool:
        """Returns whether all processes have ended and all output has been written."""
        if not self._childless:
            return False
        if self._stopped and self._killing():
            return True  # A signal has stopped the job: do not wait until its output has been read.
        return not self._sources and not any(sink.pending for sink in self._sinks)

    def _handle(self, timeout: float | None) -> None:
        self._poll(timeout)
        with contextlib.suppress(BlockingIOError):
            for number in self._receiver.recv(4096):
                self._on_signal(number)
        self._reap()
        self._kill_when_due()

    def _poll(self, timeout: float | None) -> None:
        """Waits for signals, reports and output, and passes on output."""
        poller = select.poll()
        poller.register(self._receiver, select.POLLIN)
        sources = {source.fd: source for source in self._sources if not source.sink.full}
        for fd in (*sources, *self._reports):
            poller.register(fd, select.POLLIN)
        sinks = {sink.fd: sink for sink in self._sinks if sink.pending}
        for fd in sinks:
            poller.register(fd, select.POLLOUT)
        ready = poller.poll(timeout)
        for fd, _ in ready:
            if fd in sources:
                sources[fd].read()
            elif fd in sinks:
                sinks[fd].write()
            elif fd in self._reports:
                self._on_report(fd)
        for source in self._sources:
            # If nobody reads the launcher's output, close the rank's pipe, so that its writes fail
            # too.
            if source.sink.broken:
                source.close()
        self._sources = [source for source in self._sources if not source.closed]

    def _timeout(self) -> float | None:
        """Returns how many milliseconds poll() may wait; None if there is no limit."""
        first = min([self._kill_at, *(at for _, at in self._failing.values())])
        if first == math.inf:
            return None
        return 1000 * max(first - time.monotonic(), _POLL_SECONDS)

    def _on_signal(self, number: int) -> None:
        """Ends the job on a signal to the launcher. A second signal kills all ranks at once."""
        if number == signal.SIGCHLD:
            return
        received = signal.Signals(number)
        self._stopped = True
        if os.getppid() != self._launcher:
            # The launcher was killed, so kill the ranks too.
            self._status = 128 + signal.SIGKILL
            self._ending = True
        if self._ending:
            self._kill_at = time.monotonic()
        else:
            self._status = 128 + received
            self._end(received, f"{received.name}: ending all ranks")

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                break
            number = self._ranks.pop(pid, None)
            code = os.waitstatus_to_exitcode(status)
            self._killed |= number is not None and code < 0
            if pid in self._failing:
                reported, _ = self._failing.pop(pid)
                code = reported if code == -signal.SIGKILL else code
            if number is not None and not self._ending:
                self._on_exit(number, code)
            if pid == self._coordinator:
                self._coordinator = None
                if self._ranks and not self._ending:
                    self._status = 1
                    self._end(signal.SIGTERM, "the coordination service failed; ending all ranks")
        if not self._ranks and self._coordinator is not None:
            # End the service after the ranks, because JAX aborts ranks whose service has ended.
            processes.send({self._coordinator}, signal.SIGKILL)
        if not self._ranks and not self._ending:
            # All ranks have ended, so end the processes that they started in the background.
            self._end(signal.SIGTERM, None)

    def _on_report(self, fd: int) -> None:
        """Reads a report: a rank has a pool, is about to fail, or has closed the socket."""
        reports, pid = self._reports[fd]
        report, files, _, _ = socket.recv_fds(reports, environment.POOL.size, 1)
        for file in files:
            self._pool.hold(file, environment.POOL.unpack(report)[1])
            os.close(file)
        if report[:1] == b"\0":
            return
        del self._reports[fd]
        reports.close()
        if report:
            self._reap()  # First handle ranks that ended before this rank failed.
        # Ignore the report if the rank has ended meanwhile: then its exit status has been handled.
        if report and not self._ending and pid in self._ranks:
            if self._job.go_on:
                self._failing[pid] = report[0], time.monotonic() + self._job.grace
            else:
                self._on_failure(self._ranks[pid], report[0], spare=pid)

    def _on_exit(self, number: int, code: int) -> None:
        """Handles the end of a rank: lets the others continue, or ends the job."""
        self._board.note_end(number)
        if code == 0:
            self._succeeded = number if self._succeeded is None else self._succeeded
            return
        if self._job.go_on and (self._ranks or self._succeeded is not None):
            self._say(f"rank {number} {_how(code)}; the others go on")
        else:
            self._on_failure(number, code)

    def _on_failure(self, number: int, code: int, spare: int | None = None) -> None:
        """Ends the job after a rank failed. Process `spare` gets no signal: it ends by itself."""
        self._status = 128 - code if code < 0 else code
        message = f"rank {number} {_how(code)}"
        if self._succeeded is not None:
            # Perhaps the others failed because this rank no longer takes part.
            message += f"; rank {self._succeeded} had ended first, with status 0"
        if self._ranks.keys() - {spare}:
            message += "; ending the others"
        self._end(signal.SIGTERM, message, spare)

    def _end(self, number: signal.Signals, message: str | None, spare: int | None = None) -> None:
        """Sends all processes but `spare` a signal, and kills those left after the grace period."""
        self._ending = True
        self._kill_at = time.monotonic() + self._job.grace
        if message is not None:
            self._say(message)
        self._ended |= self._ranks.keys() - {spare}
        processes.send(processes.descendants() - {spare}, number)

    def _say(self, message: str) -> None:
        self._sinks[1].line(f"jax_cxl.launch: {message}\n".encode())

    def _killing(self) -> bool:
        return time.monotonic() >= self._kill_at

    def _kill_when_due(self) -> None:
        if self._killing() and not self._childless:
            processes.send(processes.descendants(), signal.SIGKILL)
        now = time.monotonic()
        processes.send({pid for pid, (_, at) in self._failing.items() if now >= at}, signal.SIGKILL)


def _how(code: int) -> str:
    """Describes how a rank with this exit code failed."""
    if code >= 0:
        return f"failed with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"  # Real-time signals have no names.
