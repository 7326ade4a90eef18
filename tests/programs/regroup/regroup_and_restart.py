"""Loses processes, continues without them, shuts down, initializes again.

With --shut_down_first, processes shut down and initialize instead of regrouping.
"""

import os
import signal

import jax
import numpy as np
from absl import app, flags

import jax_cxl

_VICTIMS = flags.DEFINE_list("victims", ["2"], "Processes that are lost, one after another.")
_SHUT_DOWN_FIRST = flags.DEFINE_bool("shut_down_first", False, "In place of regrouping.")
_POOL = flags.DEFINE_string("pool", None, "URI of the pool.")

ONE = np.float32(1)


def sum_of_ranks(devices):
    """Returns a program that adds the ranks of the devices."""
    mesh = jax_cxl.make_mesh(
        (len(devices),), ("i",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,)
    )
    ranks = np.array([jax.devices().index(device) for device in devices], np.float32)
    return jax.jit(
        jax.shard_map(
            lambda one: jax_cxl.psum(jax.numpy.array(ranks)[jax.lax.axis_index("i")] * one, "i"),
            mesh=mesh, in_specs=jax.P(), out_specs=jax.P(),
        )
    )  # fmt: skip


def say(program, devices) -> None:
    ranks = [jax.devices().index(device) for device in devices]
    for _ in range(3):
        total = int(program(ONE))
    print(f"sum {total} of {ranks}", flush=True)


def lose(program, victim: int) -> None:
    """Kills this process if it is the victim; otherwise waits until the victim is gone."""
    if jax.process_index() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            jax.block_until_ready(program(ONE))
    except jax_cxl.PeerLostError as error:
        print(f"lost rank {error.rank}", flush=True)


def initialize_again(devices, program) -> None:
    """Shuts down and initializes. Then it runs an old program and a new program."""
    jax_cxl.shutdown()
    jax_cxl.initialize(_POOL.value)
    say(program, devices)
    say(sum_of_ranks(devices), devices)


def main(_) -> None:
    jax_cxl.initialize(_POOL.value)
    devices = jax.devices()
    program = sum_of_ranks(devices)
    say(program, devices)
    for victim in map(int, _VICTIMS.value):
        lose(program, victim)
        if _SHUT_DOWN_FIRST.value:
            jax_cxl.shutdown()
            jax_cxl.initialize(_POOL.value)
        else:
            devices = jax_cxl.regroup()
        program = sum_of_ranks(devices)
        say(program, devices)
        if not _SHUT_DOWN_FIRST.value:
            initialize_again(devices, program)
    print("done", flush=True)


if __name__ == "__main__":
    app.run(main)
