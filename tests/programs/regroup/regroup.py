"""Loses processes, one after another, and continues with the surviving ones.

Each process prints the sums that it got, of `jax.device_count()` ranks and then of fewer.
"""

import functools
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl
from jax_cxl import _core
from jax_cxl._job.pool import pools

_VICTIMS = flags.DEFINE_list("victims", ["1"], "Processes that are lost, in this order.")
_MOMENT = flags.DEFINE_enum(
    "moment", "join", ["join", "joined", "decide", "decided", "register", "registered"],
    "Where process --dies is lost when it regroups.",
)  # fmt: skip
_DIES = flags.DEFINE_integer("dies", -1, "The process that is lost while regrouping.")
_LATE = flags.DEFINE_integer("late", -1, "The process that goes late to the first new pool.")
_POOL = flags.DEFINE_string("pool", None, "URI of the pool.")


ONE = np.float32(1)


def sum_of_ranks(devices):
    """Returns a compiled program that adds the ranks of the devices."""
    mesh = jax_cxl.make_mesh(
        (len(devices),), ("i",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,)
    )

    def total(one):
        rank = jnp.array([jax.devices().index(d) for d in devices])[jax.lax.axis_index("i")]
        return jax_cxl.psum(rank * one, "i"), jax_cxl.all_gather(rank, "i")

    mapped = jax.shard_map(total, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    program = jax.jit(mapped).lower(ONE).compile()
    return lambda: program(ONE)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(moment):
    """Makes this process die in its next regroup, at the step that `moment` names."""
    holder, name = {
        "join": (_core, "join_attempt"),
        "joined": (_core, "joined_attempt"),
        "decide": (_core, "decide_attempt"),
        "decided": (_core, "decide_attempt"),
        "register": (pools, "register"),
        "registered": (pools, "register"),
    }[moment]
    function = getattr(holder, name)

    def fatal(*arguments):
        if moment in ("decided", "registered"):
            function(*arguments)
        die()

    setattr(holder, name, fatal)


def attach_late(attach, place):
    time.sleep(1)
    pools.attach = attach
    return attach(place)


def regroup():
    start = time.monotonic()
    devices = jax_cxl.regroup()
    print(f"regrouped {[d.id % 2048 + d.process_index * 10 for d in devices]}", flush=True)
    print(f"took {time.monotonic() - start:.3f} s", flush=True)
    return devices


def main(_) -> None:
    jax_cxl.initialize(_POOL.value)
    me = jax.process_index()
    devices = jax.devices()
    program = sum_of_ranks(devices)
    if me == _DIES.value:
        die_at(_MOMENT.value)
    if me == _LATE.value:
        pools.attach = functools.partial(attach_late, pools.attach)
    for victim in [*map(int, _VICTIMS.value), None]:
        for _ in range(3):
            total, gathered = jax.block_until_ready(program())
        assert total == np.sum(gathered), (total, gathered)
        print(f"sum {int(total)} of {gathered.tolist()}", flush=True)
        if me == victim:
            die()
        if victim is None:
            break
        old = program
        # If a process dies while it regroups, the others may notice only after they have continued.
        for _ in range(3):
            try:
                for _ in range(1000):  # Until the victim is gone.
                    jax.block_until_ready(program())
            except jax_cxl.PeerLostError as error:
                print(f"lost rank {error.rank}", flush=True)
            devices = regroup()
            program = sum_of_ranks(devices)
            try:
                jax.block_until_ready(program())
                break
            except jax_cxl.PeerLostError as error:
                print(f"lost rank {error.rank} at once", flush=True)
        try:
            jax.block_until_ready(old())
        except jax_cxl.NotInitializedError as error:
            print(f"old program: {error}", flush=True)
    # This program has no arguments, so nothing in it tells for which devices it was compiled.
    constant = jax.shard_map(
        lambda: jax_cxl.psum(jax.lax.axis_index("i"), "i"),
        mesh=jax.sharding.Mesh(devices, "i"),
        in_specs=(),
        out_specs=jax.P(),
    )
    print(f"without arguments: {jax.jit(constant)()}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    app.run(main)
