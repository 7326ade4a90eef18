"""Measures how long a snapshot of many small leaves blocks `save`, and how long its restore takes.

    python -m jax_cxl.launch -n 2 benchmarks/snapshots/many_leaves.py
    python -m jax_cxl.launch -n 2 --devices-per-process 2 benchmarks/snapshots/many_leaves.py

The tree is like the state of an optimizer. Of every ten leaves, four are arrays that are sharded
over the devices, three are replicated arrays, two are replicated scalars, and one is a scalar of
each process. All arrays are new in each save, as after a training step. "first save" is the first
one of a new `Snapshots`. The second save begins to compile programs in the background. Later saves
use these programs, and are measured once the programs are ready. In the third save JAX compares all
arrays with what the programs expect. "wall" is the time of the slowest process from a common start.
"processor" is the processor time of the calling thread, on which other programs on the machine have
less influence than on the wall time.
"""

import functools
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
    rows = np.zeros((8 * jax.device_count(), 16), np.float32)

    def leaf(number: int) -> jax.Array:
        if number % 10 < 4:
            return jax.device_put(rows + number, sharded)
        if number % 10 < 7:
            return jax.device_put(np.full(64, number, np.float32), replicated)
        if number % 10 < 9:
            return jax.device_put(np.float32(number), replicated)
        return jnp.int32(number)

    return {
        f"layer {first // 10}": {f"leaf {i}": leaf(first + i) for i in range(10)}
        for first in range(0, _LEAVES.value, 10)
    }


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Calls `run` on all processes at once.

    Returns:
      The longest wall time and the longest processor time of any process, in seconds.
    """
    agreement.gather([0])
    wall, processor = time.perf_counter_ns(), time.thread_time_ns()
    run()
    took = time.perf_counter_ns() - wall, time.thread_time_ns() - processor
    walls, processors = zip(*agreement.gather(took), strict=True)
    return max(walls) / 1e9, max(processors) / 1e9


def main(_) -> None:
    load = os.getloadavg()[0]
    jax_cxl.initialize()
    tree = make_tree()
    where = f"file:{_PATH}?size={jax_cxl.Snapshots.bytes_needed(tree)}"
    found: dict[str, list[tuple[float, float]]] = {}
    step = 0
    for _round in range(_REPEATS.value + 1):
        with jax_cxl.Snapshots(where) as snapshots:
            for what in ("first save", "second save", "third save", "later save", "later save"):
                if what == "third save":
                    # Waits until the programs of the second save have been compiled.
                    snapshots._publisher._selection[2]._joiner._groups.result()
                tree = jax.block_until_ready(jax.tree.map(lambda x: x + 1, tree))
                step += 1
                save = functools.partial(snapshots.save, step, tree)
                found.setdefault(what, []).append(timed(save))
                snapshots.wait()
            restore = functools.partial(snapshots.restore, step, tree)
            found.setdefault("restore", []).append(timed(restore))
    if jax.process_index() == 0:
        os.unlink(_PATH)
        for what, times in found.items():
            # Leave out the first round, because it compiles programs.
            for kind, values in zip(
                ("wall", "processor"), zip(*times[1:], strict=True), strict=True
            ):
                row = {"what": f"{what}, {kind}", "median": round(statistics.median(values), 3)}
                row |= {"least": round(min(values), 3), "most": round(max(values), 3)}
                print(json.dumps(row | {"load": load}), flush=True)


if __name__ == "__main__":
    app.run(main)
