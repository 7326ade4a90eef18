"""Threads read names, and change tables, in an order that is different on each process.

A version of name n has the value 1000 * n + version, so that a value of another name is noticed.
"""

import random
import threading
import time

import jax
import numpy as np
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the store.", required=True)

_NAMES = range(3)
_CALLS = 30
_ROWS = 16


def _tree(value):
    """Returns an array that is divided among the processes. All reads of it are reads together."""
    shape = (jax.device_count(), 5)
    mesh = jax.sharding.Mesh(jax.devices(), ("i",))
    split = jax.NamedSharding(mesh, jax.P("i"))
    return {"x": jax.make_array_from_callback(shape, split, lambda _: np.full((1, 5), value))}


def _publish(store, n, version):
    store.publish(f"tree{n}", _tree(1000 * n + version))
    store.flush(f"tree{n}")


def main(_) -> None:
    jax_cxl.initialize()
    rank, processes = jax.process_index(), jax.process_count()
    store = jax_cxl.Store(_WHERE.value)
    rows = np.zeros((_ROWS, 2), np.float32)
    for n in _NAMES:
        # The numbers of versions overlap, so that each name has a version of another name's number.
        for version in range(1 + n % 2):
            _publish(store, n, version)
        if rank == 0:
            jax_cxl.Table.create(store, f"table{n}", rows, trained=True, step_rows=_ROWS)
    jax_cxl.barrier()
    tables = [jax_cxl.Table.open(store, f"table{n}") for n in _NAMES]
    like = _tree(0)
    problems = []

    def run(n):
        rng = random.Random(f"{rank} {n}")
        try:
            for _ in range(_CALLS):
                time.sleep(0.003 * rng.random())
                version, tree = store.read(f"tree{n}", like)
                (x,) = (shard.data for shard in tree["x"].addressable_shards)
                if version != n % 2 or (np.asarray(x) != 1000 * n + version).any():
                    problems.append(f"tree{n}: {version} {x}")
                time.sleep(0.003 * rng.random())
                tables[n].add([n, 8 + n], np.full((2, 2), 1.0 + n, np.float32))
        except Exception as error:
            problems.append(f"{n}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(n,)) for n in _NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jax_cxl.barrier()
    for n in _NAMES:
        expected = rows.copy()
        expected[[n, 8 + n]] = _CALLS * processes * (1.0 + n)
        if not problems and not np.array_equal(tables[n].read(np.arange(_ROWS))["rows"], expected):
            problems.append(f"table{n} has other rows")
    print(f"problems: {problems}", flush=True)


if __name__ == "__main__":
    app.run(main)
