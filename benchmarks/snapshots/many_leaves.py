"""Measures how long a snapshot of many small leaves blocks `save`, and how long its restore takes.

    python -m jax_cxl.launch -n 2 benchmarks/snapshots/many_leaves.py
    python -m jax_cxl.launch -n 2 --devices-per-process 2 benchmarks/snapshots/many_leaves.py

The tree is like the state of an optimizer: of ten leaves four are arrays that are sharded over the
devices, three are replicated arrays, two are replicated scalars, and one is a scalar of each
process. Each figure is the median of `--repeats`, on the process that takes longest. First saves
are those of new `Snapshots`. Arrays are new in each save, as after a training step.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl
from jax_cxl._store import agreement

_LEAVES = flags.DEFINE_integer("leaves", 10000, "Leaves of the tree.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Repeats.")

_PATH = "/dev/shm/jax_cxl_many_leaves"


def make_tree() -> dict[str, Any]:
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    sharded, replicated = (jax.NamedSharding(mesh, spec) for spec in (jax.P("i"), jax.P()))
    wide = np.arange(8 * jax.device_count() * 16, dtype=np.float32).reshape(-1, 16)

    def leaf(i: int) -> Any:
        if i % 10 < 4:
            return jax.device_put(wide + i, sharded)
        if i % 10 < 7:
            return jax.device_put(np.full(64, i, np.float32), replicated)
        if i % 10 < 9:
            return jax.device_put(np.float32(i), replicated)
        return jnp.int32(i)

    return {
        f"layer {i // 10}": {f"leaf {j}": leaf(i + j) for j in range(10)}
        for i in range(0, _LEAVES.value, 10)
    }


def timed(run: Callable[[], object]) -> float:
    """Returns the seconds that the slowest process took from a common start."""
    agreement.gather([0])
    began = time.perf_counter()
    run()
    took = round((time.perf_counter() - began) * 1e9)
    return max(ns for (ns,) in agreement.gather([took])) / 1e9


def main(_) -> None:
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    tree = make_tree()
    where = f"file:{_PATH}?size={jax_cxl.Snapshots.bytes_needed(tree)}"
    found: dict[str, list[float]] = {}
    step = 0
    for round_ in range(-1, _REPEATS.value):  # The first round compiles.
        with jax_cxl.Snapshots(where) as snapshots:
            for what in ("first save", "later save"):
                tree = jax.block_until_ready(jax.tree.map(lambda x: x + 1, tree))
                step += 1
                found.setdefault(what, []).append(timed(lambda: snapshots.save(step, tree)))
                snapshots.wait()
            found.setdefault("restore", []).append(timed(lambda: snapshots.restore(step, tree)))
    if jax.process_index() == 0:
        os.unlink(_PATH)
        for what, seconds in found.items():
            values = seconds[1:]
            row = {
                "what": what,
                "median": statistics.median(values),
                "least": min(values),
                "most": max(values),
            }
            print(json.dumps(row), flush=True)
        print(json.dumps({"load": load}))


if __name__ == "__main__":
    app.run(main)
