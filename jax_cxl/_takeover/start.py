"""Starts the runtime for programs that do not import jax_cxl.

All processes have to start it together. But some processes may compile their first collective
earlier than others. So a thread of each process starts the runtime as soon as there are devices.
XLA makes the devices in all processes together.
"""

import atexit
import sys
import threading
from concurrent.futures import Future

import jax

from jax_cxl import _compat
from jax_cxl._job import lifecycle
from jax_cxl._job.ending import program_ending
from jax_cxl._job.meeting import arrival
from jax_cxl._job.setting import Setting
from jax_cxl._takeover.world import World

# How often the thread checks whether there are devices, in seconds.
_POLL_SECONDS = 0.002


_lock = threading.Lock()
_ends = threading.Event()
_thread: threading.Thread | None = None
_outcome: Future[None] = Future()


def begin() -> None:
    """Starts the runtime in the background, once, if there are several processes.

    If the program ended while the thread is in native code, Python would kill the thread, and with
    it the process (SIGABRT). So the end of the program waits for the thread.
    """
    global _thread
    with _lock:
        if _thread is None:
            # Handlers at exit run in reverse order: `_end`, then the shutdown of the runtime, then
            # JAX's own handlers.
            lifecycle.prepare_end()
            thread = threading.Thread(target=_run, name="jax_cxl-start", daemon=True)
            atexit.register(_end, thread)
            thread.start()
            _thread = thread  # Last, because others wait for its outcome if it is set.


def _run() -> None:
    try:
        # Another thread makes the devices. If it fails, there is nothing to start.
        while not _compat.backends.made() and not _ends.wait(_POLL_SECONDS):
            pass
        if _compat.backends.made() and jax.process_count() > 1:
            running = lifecycle.ensure_started()
            if jax.process_index() == 0:
                print(
                    f"jax_cxl: the collectives of these {len(running.rank_of_device)} ranks go"
                    f" through the pool ({running.spec.uri}); JAX_CXL_LOG=info lists them",
                    file=sys.stderr,
                    flush=True,
                )
        _outcome.set_result(None)
    except BaseException as error:
        _outcome.set_exception(error)


def _end(thread: threading.Thread) -> None:
    """Waits, at exit, until the start has finished.

    Other processes cannot start without this process.
    """
    _ends.set()
    if reason := program_ending.reason():
        arrival.give_up(reason)
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt:
            arrival.give_up("KeyboardInterrupt")


def ensure_started() -> lifecycle.Runtime:
    """Returns the running job. Waits for a start in the background, if there is one.

    Starts the job with the defaults if it has not been started.
    """
    if _thread is not None:
        _outcome.result()
    return lifecycle.ensure_started()


def world(wanted: Setting) -> World:
    """Returns the devices of the job, after the runtime has started."""
    local, levels = wanted.local, wanted.levels
    if jax.default_backend() != "cpu":
        if levels:
            raise NotImplementedError(
                "jax_cxl.replace_collectives(levels=True) works for CPU devices only. For GPUs"
                " leave `levels` out."
            )
        levels = False
    running = lifecycle.current()
    if running is None and (local or jax.process_count() > 1):
        if not local:
            begin()
        running = ensure_started()
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
