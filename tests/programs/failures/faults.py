"""Causes a fault in a job of two ranks. Prints the error of each rank, and when it came.

lab/gpu/faults.py runs it on CPUs and on GPUs, and compares the errors. Times are those of
the machine's monotonic clock, which both processes share.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import jax
import mismatch
import numpy as np
from absl import app, flags

import jax_cxl

_VICTIM = 1
_other_has_error = threading.Event()


def _note_fault(after: float = 0.0) -> None:
    print("fault " + json.dumps({"at": time.monotonic() + after}), flush=True)


def _signal(number: int) -> Callable[[], None]:
    def suffer() -> None:
        _note_fault()
        os.kill(os.getpid(), number)

    return suffer


def _never_comes() -> None:
    _note_fault()
    time.sleep(600)


def _raises() -> None:
    _note_fault()
    raise ValueError("no such file")


def _exits() -> None:
    _note_fault()
    sys.exit(3)


def _exits_at_once() -> None:
    _note_fault()
    os._exit(3)


# What the victim does while the other rank waits for it.
_ALONE = {
    "killed": _signal(signal.SIGKILL),
    "stopped": _signal(signal.SIGSTOP),
    "never comes": _never_comes,
    "raises": _raises,
    "exits": _exits,
    "os._exit": _exits_at_once,
}
# Programs in which the two ranks disagree. In the first seven cases, a rank may wait for nothing
# and thus not notice. So both ranks end with a psum, which then raises the error.
_PSUM, _PMAX = mismatch.PSUM, mismatch.PMAX
_DISAGREE = {
    name: ([*mismatch.CASES[name][0], _PSUM], [*mismatch.CASES[name][1], _PSUM])
    for name in ("operation", "reduction", "dtype", "count", "root", "permutation", "order")
} | {
    name: mismatch.CASES[name]
    for name in ("order_in_program", "branch", "number", "number_then_another", "loop")
}

_FAULT = flags.DEFINE_enum("fault", "killed", [*_ALONE, *_DISAGREE, "at random"], "What happens.")
_AFTER = flags.DEFINE_float("after", 0.1, "at random: seconds until the victim is killed.")
_SIZES = flags.DEFINE_list("sizes", ["1024", "262144"], "at random: numbers that psums add.")


class Report(threading.Thread):
    """Records when jax_cxl reports an error of a GPU. JAX raises it some time later."""

    def __init__(self):
        super().__init__(daemon=True)
        self.at: float | None = None
        self._cuda = None
        if jax.default_backend() == "gpu":
            from jax_cxl import _cuda

            self._cuda = _cuda
            self.start()

    def run(self) -> None:
        while self._cuda.failure() is None:
            time.sleep(0.002)
        self.at = time.monotonic()


def _describe(error: jax_cxl.CxlError, raised: float, reported: float | None) -> dict:
    names = ("rank", "pid", "host", "last", "call", "waited_s", "ranks", "calls", "told_by")
    said = {name: getattr(error, name) for name in names if hasattr(error, name)}
    return {
        "kind": type(error).__name__,
        **said,
        "text": str(error),
        "on": jax.process_index(),
        "raised": raised,
        "reported": raised if reported is None else min(reported, raised),
    }


def _wait_for_error_of(other: int) -> None:
    """Waits until the other rank has an error too: it must not learn of the end of this rank.

    If both ranks use one GPU, CUDA ends their kernels one after the other, which takes seconds. A
    rank that runs to its end sends nothing.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(other, signal.SIGUSR1)
    _other_has_error.wait(20 if jax.default_backend() == "gpu" else 1)


def _sums(sizes: list[int]) -> list[mismatch.Program]:
    return [mismatch.Program(mismatch.psum, np.ones(size, np.float32)) for size in sizes]


def _pids() -> list[int]:
    """Returns the process id of each rank."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    mine = np.array([os.getpid()], np.int32)
    sharding = jax.sharding.NamedSharding(mesh, jax.P("i"))
    pids = jax.make_array_from_process_local_data(sharding, mine)
    gather = jax.shard_map(
        lambda v: jax_cxl.all_gather(v, "i", tiled=True),
        mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P(), check_vma=False,
    )  # fmt: skip
    return np.asarray(jax.jit(gather)(pids)).tolist()


def _run() -> None:
    """Runs until this rank suffers the fault, or an error."""
    fault, rank = _FAULT.value, jax.process_index()
    if fault in _DISAGREE:
        programs = _DISAGREE[fault][rank]
        for program in (*programs, together := mismatch.Program(mismatch.psum, mismatch.X[:2])):
            program.compile()
        together()
        _note_fault()
        for program in programs:
            program()
        return
    programs = _sums([int(size) for size in _SIZES.value] if fault == "at random" else [8])
    for program in programs:
        program.compile()
    for program in programs:
        program()
    if rank == _VICTIM and fault == "at random":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # The kernel ends the process.
        _note_fault(_AFTER.value)
        signal.setitimer(signal.ITIMER_REAL, max(_AFTER.value, 1e-6))
    elif rank == _VICTIM:
        time.sleep(0.3)  # Until the other rank waits, and a heartbeat has told of these calls.
        _ALONE[fault]()
    while True:
        for program in programs:
            program()


def main(_) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: _other_has_error.set())
    jax_cxl.initialize()
    pids, report = _pids(), Report()
    print("pids " + json.dumps({"pids": pids, "host": socket.gethostname()}), flush=True)
    try:
        _run()
        return  # Ends normally: the other rank learns from that.
    except jax_cxl.CxlError as error:
        print("error " + json.dumps(_describe(error, time.monotonic(), report.at)), flush=True)
    if _FAULT.value in _DISAGREE:
        _wait_for_error_of(pids[1 - jax.process_index()])
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[_VICTIM], signal.SIGKILL)  # It may be stopped.
    os._exit(0)


if __name__ == "__main__":
    app.run(main)
