"""Loses a process at a random instant of a stage, and continues as the stage allows.

lab/kills/kill_sweep.py starts it many times, and reads its output. Times are those of
the machine's monotonic clock, which all processes share.
"""

import contextlib
import os
import signal
import sys
import time

import jax
import numpy as np
from absl import app, flags

import jax_cxl

_STAGES = ("none", "compile", "shutdown", "regroup")
_STAGE = flags.DEFINE_enum("stage", "compile", _STAGES, "What the victim is doing when it dies.")
_VICTIM = flags.DEFINE_integer("victim", 0, "The process that dies in the stage.")
_FIRST = flags.DEFINE_integer(
    "first", -1, "The process that dies before, so that there is a stage."
)
_AFTER = flags.DEFINE_float("after", 0.0, "Seconds from the stage's beginning to the death.")
_POOL = flags.DEFINE_string("pool", None, "URI of the pool.")


def say(text: str) -> None:
    print(f"{text} at {time.monotonic():.6f}", flush=True)


def die_later() -> None:
    """Sets a timer by which the kernel ends this process."""
    print(f"dies at {time.monotonic() + _AFTER.value:.6f}", flush=True)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(_AFTER.value, 1e-6))


def victim_dies_later() -> None:
    if jax.process_index() == _VICTIM.value:
        die_later()


def check_sum(devices, scale: int) -> None:
    """Compiles a program that was not compiled before, runs its collectives, and checks them."""
    mesh = jax.sharding.Mesh(np.asarray(devices), ("i",))
    ranks = [jax.devices().index(device) for device in devices]

    def body(x):
        rank = jax.numpy.asarray(ranks)[jax.lax.axis_index("i")]
        total = jax_cxl.psum(rank * x * scale, "i")
        return total + jax_cxl.psum(jax_cxl.all_gather(rank, "i", tiled=False).sum() * 0 * x, "i")

    mapped = jax.shard_map(body, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    value = int(jax.jit(mapped)(np.int32(1)))
    assert value == scale * sum(ranks), (value, scale, ranks)


def until_lost(devices) -> None:
    """Compiles and communicates until a process is lost."""
    for scale in range(1, 10000):
        check_sum(devices, scale)


def regroup() -> list:
    """Regroups, and again if another process is lost meanwhile. Returns the remaining devices."""
    for _ in range(4):
        devices = jax_cxl.regroup()
        try:
            check_sum(devices, 1)
            return devices
        except jax_cxl.PeerLostError as error:
            say(f"lost rank {error.rank}")
    raise AssertionError("somebody is lost each time")


def nobody_dies() -> None:
    for scale in range(1, 4):
        check_sum(jax.devices(), scale)


def compiles() -> None:
    try:
        victim_dies_later()
        until_lost(jax.devices())
    except jax_cxl.PeerLostError as error:
        say(f"lost rank {error.rank}")
    regroup()


def shuts_down() -> None:
    victim_dies_later()
    try:
        for scale in range(1, 10000):
            jax_cxl.shutdown()
            jax_cxl.initialize(_POOL.value)
            check_sum(jax.devices(), scale)
    except jax_cxl.CxlError as error:
        say(f"caught {type(error).__name__}: {error}")
        sys.stdout.flush()
        os._exit(0)  # JAX would wait for the lost process.


def regroups() -> None:
    me = jax.process_index()
    if me == _FIRST.value:
        os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(jax_cxl.PeerLostError):
        until_lost(jax.devices())
    victim_dies_later()
    devices = regroup()
    if len(devices) > 2:  # The victim was still there when they met.
        try:
            until_lost(devices)
        except jax_cxl.PeerLostError as error:
            say(f"lost rank {error.rank}")
        regroup()


def main(_) -> None:
    jax_cxl.initialize(_POOL.value)
    check_sum(jax.devices(), 1)
    stages = {"none": nobody_dies, "compile": compiles}
    stages |= {"shutdown": shuts_down, "regroup": regroups}
    stages[_STAGE.value]()
    say("done")


if __name__ == "__main__":
    app.run(main)
