"""In a permutation, a rank waits for no rank with which it exchanges nothing.

The processes form two rows of a mesh. In the first permutations, row 1 starts only after row 0 has
all its results. In the next one, processes 2 and 3 exchange nothing with the others, and finish
before the others start. All results are compared with NumPy. A permutation that waited for more
ranks would end in a timeout.

Runs under `python -m jax_cxl.launch -n 4`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax
from jax._src import distributed

import jax_cxl

_TAKEOVER = flags.DEFINE_bool("takeover", False, "Whether the functions of jax.lax run.")

_SHIFT = [(0, 1)]
_SWAP = [(0, 1), (1, 0)]


def _functions():
    if _TAKEOVER.value:
        return {
            "shift": (lambda x: lax.ppermute(x, "b", _SHIFT), _SHIFT),
            "swap": (lambda x: lax.ppermute(x, "b", _SWAP), _SWAP),
            "vmap": (jax.vmap(lambda x: lax.ppermute(x, "b", _SHIFT)), _SHIFT),
            "transpose": (_transposed(lax.ppermute), [(1, 0)]),
        }
    return {
        "shift": (lambda x: jax_cxl.ppermute(x, "b", _SHIFT), _SHIFT),
        "swap": (lambda x: jax_cxl.pshuffle(x, "b", [1, 0]), _SWAP),
        "vmap": (jax.vmap(lambda x: jax_cxl.ppermute(x, "b", _SHIFT)), _SHIFT),
        "transpose": (_transposed(jax_cxl.ppermute), [(1, 0)]),
        "halves": (lambda x: jax_cxl.start(jax_cxl.ppermute, x, "b", _SWAP).done(), _SWAP),
        "send": (
            lambda x: jax_cxl.precv(
                jax_cxl.psend(x, "b", _SHIFT), jax.ShapeDtypeStruct(x.shape, x.dtype), "b", _SHIFT
            ),
            _SHIFT,
        ),
    }


def _transposed(ppermute):
    return lambda x: jax.vjp(lambda v: ppermute(v, "b", _SHIFT), x)[1](x)[0]


def _check(function, x: np.ndarray, expected: np.ndarray, mesh) -> None:
    spec = jax.P(*mesh.axis_names)
    program = jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )
    sharded = jax.make_array_from_callback(
        x.shape, jax.NamedSharding(mesh, spec), lambda index: x[index]
    )
    for shard in program(sharded).addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])


def _permuted(x: np.ndarray, perm: list[tuple[int, int]]) -> np.ndarray:
    out = np.zeros_like(x)
    for source, target in perm:
        out[:, target] = x[:, source]
    return out


def main(_) -> None:
    if _TAKEOVER.value:
        jax_cxl.replace_collectives().start()
    jax_cxl.initialize()
    client, rank = distributed.global_state.client, jax.process_index()

    def done(name: str) -> None:
        client.key_value_set(f"{name} {rank}", "done")

    def wait(name: str, ranks: tuple[int, ...]) -> None:
        for other in ranks:
            client.blocking_key_value_get(f"{name} {other}", 60_000)

    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    for count in (6, 50_000):
        x = np.arange(4 * count, dtype=np.float32).reshape(2, 2, count)
        for name, (function, perm) in _functions().items():
            label = f"{name} {count}"
            if rank >= 2:
                wait(label, (0, 1))
            _check(function, x, _permuted(x, perm), mesh)
            done(label)
    line = jax.sharding.Mesh(np.array(jax.devices()), ("b",))
    ppermute = lax.ppermute if _TAKEOVER.value else jax_cxl.ppermute
    x = np.arange(4 * 7, dtype=np.float32).reshape(4, 7)
    expected = _permuted(x[None], [(0, 1), (2, 2)])[0]
    if rank < 2:
        wait("alone", (2, 3))
    _check(lambda v: ppermute(v, "b", [(0, 1), (2, 2)]), x, expected, line)
    done("alone")
    # Only row 0 runs the permutation.
    x = np.arange(4 * 5, dtype=np.float32).reshape(2, 2, 5)
    expected = np.stack([_permuted(x, _SWAP)[0], x[1]])

    def one_row(v):
        swap = lambda w: ppermute(w, "b", _SWAP)  # noqa: E731
        return lax.cond(lax.axis_index("a") == 0, swap, lambda w: w + jnp.float32(0), v)

    _check(one_row, x, expected, mesh)
    print("permutations right", flush=True)


if __name__ == "__main__":
    jax.distributed.initialize()
    app.run(main)
