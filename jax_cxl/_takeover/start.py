"""Starts the runtime for programs that do not import jax_cxl.

All processes have to start it together. But some processes may compile their first collective
earlier than others. So a thread of each process starts the runtime as soon as there are devices.
XLA makes the devices in all processes together.
"""

import dataclasses
import threading

import jax

from jax_cxl._runtime import lifecycle
from jax_cxl._takeover.setting import Setting
from jax_cxl._takeover.world import World


class _Starter:
    """A thread that starts the runtime, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        with self._lock:
            if self._thread is None:
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
            jax.devices()  # Waits for the backend, which another thread may be making.
            if jax.process_count() > 1:
                lifecycle.ensure_started()
        except BaseException as error:
            self._error = error


_starter = _Starter()


def begin() -> None:
    """Starts the runtime in the background, if there are several processes."""
    _starter.begin()


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
    return dataclasses.replace(
        here,
        rank_of=running.rank_of_device,
        generation=running.generation,
        local=local,
        levels=levels,
    )


def devices() -> World:
    """Returns the devices of the job, without ranks, whether the runtime has started or not."""
    processes = {device.id: device.process_index for device in jax.devices()}
    return World({}, processes, gpus=jax.default_backend() != "cpu")
