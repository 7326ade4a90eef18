"""Trains a small transformer with a memory of n-grams, which all processes share in the pool.

    python -m jax_cxl.launch -n 2 examples/train_ngrams.py
    python -m jax_cxl.launch -n 2 examples/train_ngrams.py --dense

To the embedding of each byte of the text, the model adds two rows of a table: one for the last two
bytes, and one for the last three. The table is in a store, once for all processes and hosts. A step
takes the rows that it needs, and adds their gradients. With --dense each process has a table of its
own on its device, and updates all of it. Both print the same losses, to the last bit.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from common import corpus, transformer

import jax_cxl

_WHERE = flags.DEFINE_string("where", "shm:ngrams?size=192MiB", "URI of the store.")
_STEPS = flags.DEFINE_integer("steps", 60, "How many steps to train.")
_ROWS = flags.DEFINE_integer("rows", 1 << 16, "Rows of the table.")
_BATCH = flags.DEFINE_integer("batch", 8, "Sequences of each process in a step.")
_DENSE = flags.DEFINE_bool("dense", False, "Whether each process has a table of its own.")

_SIZES = transformer.Sizes(layers=2, width=64, heads=4)
_LENGTH, _RATE, _TABLE_RATE = 64, 3e-3, 2.0
_NAME = "ngrams"

# ids, delta -> rows (docs/tables.md)
Take = Callable[[jax.Array, jax.Array], jax.Array]


def rows_of_ngrams(inputs: jax.Array) -> jax.Array:
    """Returns the rows of the two n-grams that end at each byte: (B, T) to (B, T, 2)."""
    text = inputs.astype(jnp.uint32)
    before = [jnp.pad(text, ((0, 0), (n, 0)))[:, : text.shape[1]] for n in (1, 2)]
    two = text * 257 + before[0]
    hashes = jnp.stack([two, two * 65537 + before[1] + 1], -1) * jnp.uint32(2654435761)
    return (hashes >> 8).astype(jnp.int32) % _ROWS.value


def loss(
    parameters: Any, delta: jax.Array, inputs: jax.Array, targets: jax.Array, take: Take
) -> jax.Array:
    """Returns the mean nats of a byte."""
    outer, layers = parameters
    x = transformer.embed(outer, inputs) + take(rows_of_ngrams(inputs), delta).sum(2)
    for layer in layers:
        x = transformer.apply_layer(layer, x, _SIZES.heads)
    return jnp.mean(transformer.nats(outer, x, targets))


def adam(step: jax.Array, x: jax.Array, slope: jax.Array, m: jax.Array, v: jax.Array) -> Any:
    """Returns a parameter and its moments after a step."""
    m, v = 0.9 * m + 0.1 * slope, 0.99 * v + 0.01 * slope**2
    return x - _RATE * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.99**step)) + 1e-8), m, v


def train_step(state: Any, batch: jax.Array, take: Take) -> Any:
    """Returns the state after a step, the loss, ids of rows, and what to add to these rows."""
    step, parameters, m, v = state
    inputs, targets = batch[:, :-1].astype(jnp.int32), batch[:, 1:].astype(jnp.int32)
    delta = jnp.zeros((*inputs.shape, 2, _SIZES.width))
    value, (slopes, of_rows) = jax.value_and_grad(loss, argnums=(0, 1))(
        parameters, delta, inputs, targets, take
    )
    value, slopes = jax_cxl.pmean((value, slopes), "i")
    moved = jax.tree.map(lambda *of: adam(step + 1.0, *of), parameters, slopes, m, v)
    parameters, m, v = jax.tree.transpose(
        jax.tree.structure(parameters), jax.tree.structure((0, 0, 0)), moved
    )
    ids, of_rows = rows_of_ngrams(inputs), of_rows * (-_TABLE_RATE / jax.device_count())
    return (step + 1, parameters, m, v), value, ids, of_rows


def initial_state() -> Any:
    """Returns parameters and their moments, the same on all processes."""
    keys = jax.random.split(jax.random.key(0), _SIZES.layers + 1)
    outer = transformer.init_embedding(keys[0], _SIZES)
    parameters = outer, [transformer.init_layer(key, _SIZES) for key in keys[1:]]
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return jnp.int32(0), parameters, zeros, zeros


def open_table() -> jax_cxl.Table:
    """Makes the table, of zeros, in the first process, and opens it in all."""
    if jax.process_index() == 0:
        store = jax_cxl.Store(_WHERE.value)
        with contextlib.suppress(jax_cxl.StoreError):  # There may be no store or no such table.
            store.delete(_NAME)
        rows = np.zeros((_ROWS.value, _SIZES.width), np.float32)
        jax_cxl.Table.create(store, _NAME, rows, trained=True).close()
    jax_cxl.barrier(name="the table is made")
    return jax_cxl.Table.open(_WHERE.value, _NAME)


def main(_) -> None:
    """Trains."""
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh((jax.device_count(),), ("i",))
    text = corpus.load("", _LENGTH + 1)
    table = None if _DENSE.value else open_table()
    dense = jnp.zeros((_ROWS.value if table is None else 0, _SIZES.width))

    def one_step(state: Any, batch: jax.Array, dense: jax.Array) -> Any:
        if table is not None:
            return train_step(state, batch, lambda ids, delta: table.take(ids, delta=delta))
        return train_step(state, batch, lambda ids, delta: jnp.take(dense, ids, axis=0) + delta)

    def add(dense: jax.Array, ids: jax.Array, of_rows: jax.Array) -> jax.Array:
        every_id, every_row = jax_cxl.all_gather((ids, of_rows), "i", tiled=True)
        return dense + jnp.zeros_like(dense).at[every_id].add(every_row)

    shared, divided = jax.P(), jax.P("i")

    def compiled(function: Any, in_specs: Any, out_specs: Any) -> Any:
        specs = {"in_specs": in_specs, "out_specs": out_specs}
        return jax.jit(jax.shard_map(function, mesh=mesh, **specs, check_vma=False))

    step = compiled(one_step, (shared, divided, shared), (shared, shared, divided, divided))
    add_to_dense = compiled(add, (shared, divided, divided), shared)
    replicated, by_process = jax.NamedSharding(mesh, shared), jax.NamedSharding(mesh, divided)
    state = jax.device_put(initial_state(), replicated)
    dense = jax.device_put(dense, replicated)
    start = time.perf_counter()
    for number in range(_STEPS.value):
        rows = _BATCH.value * jax.device_count()
        every = text.train_batch(0, number, rows, _LENGTH + 1)
        batch = jax.make_array_from_callback(every.shape, by_process, every.__getitem__)
        state, value, ids, of_rows = step(state, batch, dense)
        if table is None:
            dense = add_to_dense(dense, ids, of_rows)
        else:
            table.add(ids, of_rows)
        if jax.process_index() == 0 and (number + 1) % 10 == 0:
            print(f"step {number + 1}: loss {float(value)!r}", flush=True)
    seconds = (time.perf_counter() - start) / _STEPS.value
    if jax.process_index() == 0:
        kind = "dense tables" if table is None else "a table in the pool"
        print(f"{kind}: {1e3 * seconds:.1f} ms a step with compilation")
    if table is not None:
        table.close()


if __name__ == "__main__":
    app.run(main)
