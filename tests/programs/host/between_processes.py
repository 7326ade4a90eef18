"""Calls jax_cxl.barrier and jax_cxl.process_gather between processes, as the argument says."""

import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import jax_cxl


def _of(process):
    """Returns the data of a process, whose shapes and values depend on its number."""
    return {
        "empty": np.zeros((0, 3), np.int8),
        "half": jnp.full((process + 1, 2), process, jnp.bfloat16),
        "large": np.arange((process + 1) * 5_000_000, dtype=np.uint32),
        "number": 2.5 * process,
    }


def gather(me):
    for root in range(jax.process_count()):
        found = jax_cxl.process_gather(_of(me), root=root)
        if me != root:
            assert found is None
            continue
        for process, tree in enumerate(found):
            jax.tree.map(np.testing.assert_array_equal, tree, _of(process))
            assert tree["half"].dtype == jnp.bfloat16


def barrier(me):
    for step in range(3):
        if me == step % 2:
            time.sleep(0.3)
        started = time.monotonic()
        assert jax_cxl.barrier(name=f"step {step}") is None
        assert me == step % 2 or time.monotonic() - started > 0.1


def late(me):
    jax_cxl.barrier(name="first")
    if me == 1:
        time.sleep(2)
        return
    try:
        jax_cxl.barrier(name="second", timeout=0.5)
    except jax_cxl.CollectiveTimeoutError as error:
        print(f"rank {error.rank}, {error.call}: {error}")


def lost(me):
    if me == 1:
        os._exit(0)
    try:
        jax_cxl.barrier(name="alone")
    except jax_cxl.PeerLostError as error:
        print(f"lost {error.rank}: {error}", flush=True)
        # At a normal exit, JAX would wait 100 s for the lost process.
        os._exit(0)


def other(me):
    try:
        jax_cxl.barrier(name=f"of {me}")
    except jax_cxl.MismatchError as error:
        print(error.ranks, error.calls)


def trees(me):
    try:
        jax_cxl.process_gather([1] * (me + 1))
    except jax_cxl.MismatchError as error:
        print(error.ranks, error)


if __name__ == "__main__":
    jax_cxl.initialize()
    globals()[sys.argv[1]](jax.process_index())
    print("done")
