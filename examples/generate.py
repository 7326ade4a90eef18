"""Generates text by a transformer that the ranks share, with a cache of keys and values.

    python -m jax_cxl.launch -n 2 examples/generate.py
    python -m jax_cxl.launch -n 2 examples/generate.py --collectives=lax

Each rank has some heads of each layer, the cache of these heads, and a part of each perceptron
(tensor parallelism). A token needs two short sums a layer, so the latency of the sums is much of
the time of a token. The weights are random: replace `weights` with weights that you have trained.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from common import transformer

import jax_cxl

_PROMPT = flags.DEFINE_string("prompt", "import jax", "Text to continue.")
_TOKENS = flags.DEFINE_integer("tokens", 64, "How many bytes to generate.", lower_bound=2)
_COLLECTIVES = flags.DEFINE_enum("collectives", "cxl", ["cxl", "lax"], "Whose sums to use.")

_SIZES = transformer.Sizes(layers=4, width=256, heads=8)
_AXIS = "heads"

# {"outer": ..., "layers": [...]} as in common/transformer.py, and {"bytes": (D, 256)}.
Weights = dict[str, Any]
# Keys and values of a layer, each (B, positions, heads of this rank, K).
Cache = tuple[jax.Array, jax.Array]


def weights() -> Weights:
    """Returns the weights, the same on all ranks."""
    first, last, *keys = jax.random.split(jax.random.key(0), _SIZES.layers + 2)
    return {
        "outer": transformer.init_embedding(first, _SIZES),
        "layers": [transformer.init_layer(key, _SIZES) for key in keys],
        "bytes": jax.random.normal(last, (_SIZES.width, transformer.BYTES)),
    }


def shares() -> Any:
    """Returns the partition of the weights.

    A rank has some columns of the matrices of a layer's first products ("qkv" and "up"), and the
    corresponding rows of the matrices of the second products ("out" and "down").
    """
    columns, rows, whole = jax.P(None, _AXIS), jax.P(_AXIS), jax.P()
    layer = {"qkv": columns, "out": rows, "up": columns, "down": rows}
    layer |= {"attention_norm": whole, "mlp_norm": whole}
    return {"outer": whole, "layers": [layer] * _SIZES.layers, "bytes": whole}


def add_up(x: jax.Array) -> jax.Array:
    """Adds up what the ranks have computed with their parts of a layer."""
    return (jax_cxl if _COLLECTIVES.value == "cxl" else jax.lax).psum(x, _AXIS)


def attend(layer: Any, x: jax.Array, cache: Cache, start: Any) -> tuple[jax.Array, Cache]:
    """Attends from x, (B, T, D), whose positions begin at `start`, to x and all earlier positions.

    Returns:
      This rank's share of the result, (B, T, D), and the cache with the new keys and values.
    """
    batch, length, _ = x.shape
    size = _SIZES.width // _SIZES.heads
    qkv = (x @ layer["qkv"]).reshape(batch, length, -1, 3, size)
    queries, keys = (transformer.rotate(qkv[:, :, :, i], start) for i in range(2))
    # The shapes never change, so that all tokens run one program.
    keys, values = (
        jax.lax.dynamic_update_slice_in_dim(all_, new, start, 1)
        for all_, new in zip(cache, (keys, qkv[:, :, :, 2]), strict=True)
    )
    scores = jnp.einsum("bqhk,bthk->bhqt", queries, keys) * size**-0.5
    seen = jnp.arange(keys.shape[1]) <= start + jnp.arange(length)[:, None]
    mixed = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
    mixed = jnp.einsum("bhqt,bthk->bqhk", mixed, values)
    return mixed.reshape(batch, length, -1) @ layer["out"], (keys, values)


def forward(
    weights: Weights, caches: list[Cache], tokens: jax.Array, start: Any
) -> tuple[jax.Array, list[Cache]]:
    """Returns the most likely byte after each of `tokens`, (B, T) int32, and the new caches."""
    x = transformer.embed(weights["outer"], tokens)
    made = []
    for layer, cache in zip(weights["layers"], caches, strict=True):
        out, cache = attend(layer, transformer.normalize(x, layer["attention_norm"]), cache, start)
        x = x + add_up(out)
        hidden = jax.nn.gelu(transformer.normalize(x, layer["mlp_norm"]) @ layer["up"])
        x = x + add_up(hidden @ layer["down"])
        made.append(cache)
    x = transformer.normalize(x, weights["outer"]["norm"])
    return jnp.argmax(x @ weights["bytes"], -1).astype(jnp.int32), made


def prefill(weights: Weights, prompt: jax.Array, positions: int) -> tuple[jax.Array, list[Cache]]:
    """Makes empty caches with room for `positions`, and calls `forward` for the prompt.

    The prompt fills the first positions of the caches.
    """
    heads = _SIZES.heads // jax.lax.axis_size(_AXIS)
    empty = jnp.zeros((len(prompt), positions, heads, _SIZES.width // _SIZES.heads))
    return forward(weights, [(empty, empty)] * _SIZES.layers, prompt, 0)


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), (_AXIS,), axis_types=(jax.sharding.AxisType.Auto,)
    )
    if _SIZES.heads % mesh.size:
        raise app.UsageError(f"{_SIZES.heads} heads cannot be shared by {mesh.size} devices")
    prompt = np.frombuffer(_PROMPT.value.encode(), np.uint8).astype(np.int32)[None]
    positions = prompt.shape[1] + _TOKENS.value

    whole, by_head = jax.P(), jax.P(None, None, _AXIS)
    on_all = functools.partial(
        jax.shard_map, mesh=mesh, out_specs=(whole, by_head), check_vma=False
    )
    begin = jax.jit(
        on_all(functools.partial(prefill, positions=positions), in_specs=(shares(), whole))
    )
    next_byte = jax.jit(
        on_all(forward, in_specs=(shares(), by_head, whole, whole)), donate_argnums=1
    )
    shardings = jax.tree.map(functools.partial(jax.NamedSharding, mesh), shares())
    model = jax.jit(weights, out_shardings=shardings)()

    following, caches = begin(model, prompt)
    said = [np.asarray(following[:, -1:])]
    step = next_byte.lower(model, caches, said[0], np.int32(0)).compile()
    start = time.perf_counter()
    for position in range(prompt.shape[1], positions - 1):
        following, caches = step(model, caches, said[-1], np.int32(position))
        said.append(np.asarray(following))  # A program that shows text waits for each byte.
    seconds = (time.perf_counter() - start) / (_TOKENS.value - 1)

    # Check the bytes: a single pass over the whole text has to find the same bytes.
    text = np.concatenate([prompt, *said], 1)
    again = np.asarray(begin(model, text)[0])
    wrong = np.count_nonzero(again[:, prompt.shape[1] - 1 : -1] != text[:, prompt.shape[1] :])
    if jax.process_index() == 0:
        print(bytes(text[0].astype(np.uint8)))
        print(f"{_TOKENS.value} bytes, {wrong} differ from those of one pass without a cache")
        print(f"{_COLLECTIVES.value}: {1e3 * seconds:.2f} ms a byte")


if __name__ == "__main__":
    app.run(main)
