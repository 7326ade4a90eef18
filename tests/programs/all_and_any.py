"""jnp.all, jnp.any and bitwise reductions over a sharded dimension, which XLA's partitioner splits.

Runs under `python -m jax_cxl.launch -n 2`. Every collective has to go through the pool, and the
results have to be those of NumPy.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from jax import lax

import jax_cxl

ROWS, COLUMNS = 8, 70


def _bits(function, start):
    return lambda x: lax.reduce(x, np.asarray(start, x.dtype), function, (0,))


def _cases(rng: np.random.Generator):
    """Yields (name, function, its argument, NumPy's result)."""
    # Column 0 is all true, and column 1 is all false. In columns 2 to 5, the last row alone decides
    # the result of `all`; in columns 6 to 9, of `any`. The other columns are random.
    truth = np.where(rng.integers(0, 3, COLUMNS) == 0, True, rng.integers(0, 2, (ROWS, COLUMNS)))
    truth = truth.astype(bool)
    truth[:, 0], truth[:, 1] = True, False
    truth[:-1, 2:6], truth[-1, 2:6] = True, [True, False, True, False]
    truth[:-1, 6:10], truth[-1, 6:10] = False, [True, False, True, False]
    for name, function, ufunc in (("all", jnp.all, np.all), ("any", jnp.any, np.any)):
        yield name, functools.partial(function, axis=0), truth, ufunc(truth, axis=0)
        yield f"{name} of everything", function, truth, ufunc(truth)
        yield f"{name} of columns", lambda x, f=function: f(x[:, 2]), truth, ufunc(truth[:, 2])
        numbers = np.where(truth, rng.standard_normal(truth.shape), 0).astype(np.float32)
        yield f"{name} of floats", functools.partial(function, axis=0), numbers, ufunc(numbers, 0)
    for dtype in (np.int8, np.uint16, np.int32):
        bits = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (ROWS, COLUMNS), dtype)
        for function, ufunc, start in (
            (lax.bitwise_and, np.bitwise_and, np.array(-1).astype(dtype)),
            (lax.bitwise_or, np.bitwise_or, 0),
        ):
            name = f"{ufunc.__name__} of {np.dtype(dtype)}"
            yield name, _bits(function, start), bits, ufunc.reduce(bits, axis=0)


def main(_) -> None:
    jax_cxl.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = jax.NamedSharding(mesh, jax.P("i")), jax.NamedSharding(mesh, jax.P())
    checked = 0
    for name, function, values, expected in _cases(np.random.default_rng(0)):
        x = jax.make_array_from_callback(values.shape, split, lambda i, v=values: v[i])
        before = jax_cxl.stats()
        with jax_cxl.replace_collectives(strict=True):
            out = np.asarray(jax.jit(function, out_shardings=whole)(x))
        after = jax_cxl.stats()
        if out.dtype != expected.dtype or not np.array_equal(out, expected):
            raise SystemExit(f"{name}: got {out}, expected {expected}")
        if after.collectives_taken == before.collectives_taken or after.calls == before.calls:
            raise SystemExit(f"{name}: nothing went through the pool")
        checked += 1
    names = ", ".join(sorted(jax_cxl.stats().operations))
    print(f"{checked} reductions right: {names}", flush=True)


if __name__ == "__main__":
    app.run(main)
