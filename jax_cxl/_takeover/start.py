"""Starts the runtime for programs that do not import jax_cxl.

All processes have to start it together. But some processes may compile their first collective
earlier than others. So a thread of each process starts the runtime as soon as there are devices.
XLA makes the devices in all processes together.
"""

import atexit
import threading

import jax

from jax_cxl import _compat
from jax_cxl._job import lifecycle
from jax_cxl._job.ending import program_ending
from jax_cxl._job.meeting import arrival
from jax_cxl._job.setting import Setting
from jax_cxl._takeover.world import World

# How often the thread checks whether there are devices, in seconds.
_POLL_SECONDS = 0.002


class _Starter:
    """A thread that starts the runtime, once.

    If the program ended while the thread is in native code, Python would kill the thread, and with
    it the process (SIGABRT). So the end of the program waits for the thread.
    """

    def __init__(self) -> None:
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def begun(self) -> bool:
        return self._thread is not None

    def begin(self) -> None:
        with self._lock:
            if self._thread is None:
                # Handlers at exit run in reverse order: `_end`, then the shutdown of the runtime,
                # then JAX's own handlers.
                lifecycle.prepare_end()
                atexit.register(self._end)
                self._thread = threading.Thread(target=self._run, name="jax_cxl-start", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        self.begin()
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            # Another thread makes the devices. If it fails, there is nothing to start.
            while not _compat.backends.made():
                if self._ends.wait(_POLL_SECONDS) and not _compat.backends.made():
                    return
            if jax.process_count() > 1:
                lifecycle.ensure_started()
        except BaseException as error:
            self._error = error

    def _end(self) -> None:
        """Waits, at exit, for the start to finish, because other processes may need this one to
        start."""
        assert self._thread is not None
        self._ends.set()
        if reason := program_ending.reason():
            arrival.give_up(reason)
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt:
                arrival.give_up("KeyboardInterrupt")


_starter = _Starter()


def begin() -> None:
    """Starts the runtime in the background, if there are several processes."""
    _starter.begin()


def ensure_started() -> lifecycle.Runtime:
    """Returns the running job. Waits for a start in the background, if there is one.

    Starts the job with the defaults if it has not been started.
    """
    if _starter.begun:
        _starter.wait()
    return lifecycle.ensure_started()


def world(wanted: Setting) -> World:
    """Returns the devices of the job, after the runtime has started.

    Args:
      wanted: how collectives are taken over.

    Raises:
      NotImplementedError: the setting demands levels on GPUs.
    """
    local, levels = wanted.local, wanted.levels
    if jax.default_backend() != "cpu":
        if levels:
            raise NotImplementedError(
                "jax_cxl.replace_collectives(levels=True) is for CPU devices: XLA has scheduled a"
                " program for GPUs when its collectives are replaced. Call jax_cxl.psum and its"
                " like with levels=True instead."
            )
        levels = False
    running = lifecycle.current()
    if running is None and (local or jax.process_count() > 1):
        if local:
            lifecycle.ensure_started()
        else:
            _starter.wait()
        running = lifecycle.current()
    here = devices()
    if running is None:
        return here
    return here._replace(
        rank_of=running.rank_of_device,
        generation=running.generation,
        local=local,
        levels=levels,
    )


def devices() -> World:
    """Returns the devices of the job, without their ranks. The runtime need not have started."""
    processes = {device.id: device.process_index for device in jax.devices()}
    return World({}, processes, gpus=jax.default_backend() != "cpu")
