"""How long collectives take on the device, read from a trace of JAX's profiler."""

import collections
import glob
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from jax.profiler import ProfileData


class Event(NamedTuple):
    """An operation of a stream of a device; times are in nanoseconds."""

    name: str
    start: float
    duration: float


class NoDeviceTimeError(Exception):
    """A trace does not show the times of the calls. The message lists what the trace contains."""


def trace(run: Callable[[], None]) -> list[Event]:
    """Returns the operations of this process's GPUs while `run` runs.

    Raises:
      NoDeviceTimeError: nothing was traced. `run` runs in any case, because other ranks need it.
    """
    with tempfile.TemporaryDirectory(prefix="jax_cxl_trace_") as folder:
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = options.python_tracer_level = 0
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except (RuntimeError, ValueError, OSError) as error:
            run()
            raise NoDeviceTimeError(f"the profiler did not start: {error}") from error
        run()
        try:
            jax.profiler.stop_trace()
            (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
            return read(ProfileData.from_file(path))
        except (RuntimeError, ValueError, OSError) as error:
            raise NoDeviceTimeError(f"the profiler left nothing to read: {error}") from error


def read(profile: ProfileData) -> list[Event]:
    """Returns the operations of all streams of GPUs in a profile.

    Raises:
      NoDeviceTimeError: the profile has no streams of GPUs.
    """
    lines = [(plane.name, line) for plane in profile.planes for line in plane.lines]
    events = [
        Event(event.name, event.start_ns, event.duration_ns)
        for plane, line in lines
        if "GPU" in plane and line.name.startswith("Stream")
        for event in line.events
    ]
    if not events:
        there = ", ".join(f"{plane} {line.name!r}" for plane, line in lines)
        raise NoDeviceTimeError(f"the trace has no streams of GPUs; it has: {there or 'nothing'}")
    return events


def of_calls(events: Sequence[Event], backend: str, calls: int) -> list[float]:
    """Returns the microseconds of each call of a program of `calls` equal collectives.

    All calls execute the same kernels, one call after another. The time of a call is the time from
    the start of its first kernel to the end of its last kernel.

    Args:
      events: operations of the device.
      backend: the backend of the collectives: "jax_cxl" or "nccl-...".
      calls: number of calls.

    Raises:
      NoDeviceTimeError: the calls do not all have the same number of kernels in the trace.
    """
    kernels = sorted((e for e in events if _is_of(backend, e.name)), key=lambda e: e.start)
    each, rest = divmod(len(kernels), calls)
    if each == 0 or rest:
        names = collections.Counter(event.name.partition("(")[0] for event in events)
        most = ", ".join(f"{n} x {name}" for name, n in names.most_common(8))
        raise NoDeviceTimeError(
            f"the trace has {len(kernels)} kernels of {backend} for {calls} calls, not the"
            f" same number for each call; its most frequent kernels are {most}"
        )
    groups = [kernels[first : first + each] for first in range(0, len(kernels), each)]
    return [(max(e.start + e.duration for e in g) - g[0].start) / 1e3 for g in groups]


def _is_of(backend: str, name: str) -> bool:
    if backend.startswith("nccl-"):
        return "nccl" in name
    # Skip the waiting kernel inside a call that the host executes (cc/gpu/cuda/host_path.h).
    return "jax_cxl" in name and "::Wait(" not in name
