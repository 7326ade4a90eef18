"""A job of a test of tables: its processes train a table together, with a dense array beside it.

Runs under `jax_cxl.launch`. In odd steps, each process passes ids and updates of its own. In even
steps, they are arrays over all processes, of which it has its shards. Later, one process lets a
step fail, which changes nothing on any process.
"""

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the store.", required=True)
_ROWS, _WIDTH = 3000, 8


def _batch(step, process):
    rng = np.random.default_rng((step, process))
    ids = rng.integers(-_ROWS // 3, _ROWS // 3, (50, 4))
    return ids, rng.standard_normal((50, 4, _WIDTH)).astype(np.float32)


def _all(step):
    batches = [_batch(step, process) for process in range(jax.process_count())]
    return [np.concatenate(x) for x in zip(*batches, strict=True)]


def _momentum(rows, gradients, state):
    m = jnp.float32(0.5) * state["m"] + gradients
    return rows - m, {"m": m}


def main(_):
    jax_cxl.initialize()
    own, mesh = jax.process_index(), jax_cxl.make_mesh((2,), ("i",))
    rows = np.random.default_rng(0).standard_normal((_ROWS, _WIDTH)).astype(np.float32)
    if own == 0:
        jax_cxl.Table.create(
            _WHERE.value, "a", rows, trained=True, step_rows=1000, state={"m": np.zeros_like(rows)}
        ).close()
    table = jax_cxl.Table.open(_WHERE.value, "a", timeout=100)
    take = jax.jit(lambda ids: table.take(ids))
    everything = np.arange(_ROWS)
    dense, m = rows, np.zeros_like(rows)
    for step in range(1, 7):
        ids, updates = _batch(step, own)
        if step % 2 == 0:  # the same as shards of an array of all processes
            sharding = jax.NamedSharding(mesh, jax.P("i"))
            shape = (50 * jax.process_count(), 4)
            ids = jax.make_array_from_process_local_data(sharding, ids.astype(np.int32), shape)
            updates = jax.make_array_from_process_local_data(sharding, updates)
        all_ids, all_updates = _all(step)
        sums = np.asarray(jnp.zeros_like(dense).at[all_ids].add(all_updates))
        if step == 5:
            assert table.update(ids, updates, _momentum) == step
            hit = np.unique(all_ids % _ROWS)
            m[hit] = np.float32(0.5) * m[hit] + sums[hit]
            dense = dense.copy()
            dense[hit] -= m[hit]
        else:
            assert table.add(ids, updates) == step
            dense = dense + sums
        found = np.asarray(take(everything))
        assert found.tobytes() == dense.tobytes(), f"step {step}"
    assert table.read()["m"].tobytes() == m.tobytes()

    # An error of one process is an error of all, and changes nothing.
    ids, updates = _batch(9, own)
    try:
        table.add(ids, updates[:, :, : _WIDTH - (own == 1)])
    except ValueError as error:
        assert own == 1 and "updates must have the shape" in str(error), error
    except jax_cxl.StoreError as error:
        assert own != 1 and "process 1 could not change the table" in str(error), error
    else:
        raise AssertionError("no error")
    try:
        table.add(ids, updates.astype(np.float16 if own else np.float32))
    except jax_cxl.MismatchError as error:
        assert "updates of float32" in str(error) and "updates of float16" in str(error), error
    else:
        raise AssertionError("no error")
    assert np.asarray(take(everything)).tobytes() == dense.tobytes()
    assert table.add(ids, updates) == 7
    table.close()
    print(f"done with {own}")


if __name__ == "__main__":
    app.run(main)
