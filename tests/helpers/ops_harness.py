"""Functions for the tests of the collectives: ranks, inputs, and checks against NumPy.

An *oracle* is the collective in NumPy: it takes the values of all ranks, stacked along a
first dimension, and returns their results in the same way.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import quick_compilation
from jax.sharding import AxisType

RANKS = 4
GROUPS = [[0, 2], [3, 1]]


def mesh(shape: tuple[int, ...] = (RANKS,), names: tuple[str, ...] = ("i",)) -> Any:
    """Returns a mesh of the first devices."""
    devices = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape), devices=devices)


def program(function: Callable, *, check_vma: bool, on: Any = None, **options: Any) -> Callable:
    """Returns the jitted program that runs `function` on each rank's value.

    It takes and returns the values of all ranks, stacked along a first dimension; `options` are
    those of `jax.jit`.
    """
    on = mesh() if on is None else on
    spec = jax.P(on.axis_names)

    def body(x):
        out = function(jax.tree.map(lambda leaf: leaf[0], x))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], out)

    mapped = jax.shard_map(body, mesh=on, in_specs=spec, out_specs=spec, check_vma=check_vma)
    return jax.jit(mapped, **options)


def run(function: Callable, x: Any, *, check_vma: bool = True, on: Any = None) -> Any:
    """Runs `function` on each rank's value; returns the results as NumPy arrays."""
    return run_each(function, [x], check_vma=check_vma, on=on)[0]


def run_each(
    function: Callable, inputs: Sequence[Any], *, check_vma: bool = True, on: Any = None
) -> list[Any]:
    """Runs a program on several inputs of equal shapes and dtypes, with one compilation."""
    plain = all(np.asarray(leaf).dtype.isbuiltin == 1 for leaf in jax.tree.leaves(inputs))
    options = {"compiler_options": quick_compilation.OPTIONS} if plain else {}
    compiled = program(function, check_vma=check_vma, on=on, **options)
    return [jax.tree.map(np.asarray, compiled(x)) for x in inputs]


def values(*shape: int, dtype: Any = np.float32, ranks: int = RANKS) -> np.ndarray:
    """Returns small integers, whose sum has the same bits in any order of additions."""
    rng = np.random.default_rng(0)
    low, high = (0, 2) if np.dtype(dtype) == bool else (0, 8)
    return rng.integers(low, high, size=(ranks, *shape)).astype(dtype)


def uneven_values(*shape: int, dtype: Any = np.float32, ranks: int = RANKS) -> np.ndarray:
    """Returns values whose sum depends on the order of the additions."""
    rng = np.random.default_rng(1)
    scale = 10.0 ** rng.integers(-3, 4, size=(ranks, *shape))
    return (rng.standard_normal((ranks, *shape)) * scale).astype(dtype)


def fold(x: np.ndarray, function: Callable = np.add) -> np.ndarray:
    """Reduces the first dimension from left to right; short floats accumulate in float32."""
    short = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    total = x[0].astype(np.float32) if short else x[0].copy()
    for part in x[1:]:
        total = function(total, part.astype(total.dtype))
    return total.astype(x.dtype)


def by_group(oracle: Callable, groups: Any = GROUPS) -> Callable:
    """Returns an oracle that applies `oracle` to each group, as axis_index_groups does."""

    def grouped(x):
        results: list[Any] = [None] * len(x)
        for group in groups:
            for i, result in zip(group, oracle(x[list(group)]), strict=True):
                results[i] = result
        return np.stack(results)

    return grouped


def check_equal(actual: Any, expected: Any) -> None:
    """Checks dtype, shape and every bit."""
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    np.testing.assert_array_equal(
        np.ascontiguousarray(actual).view(np.uint8),
        np.ascontiguousarray(expected).view(np.uint8),
    )


def check_linear(function: Callable, oracle: Callable, *shape: int, check_vma: bool) -> None:
    """Checks a linear collective whose result may differ from rank to rank.

    Compares values, derivatives and batching with the oracle.
    """
    cases: list[tuple[Callable, np.ndarray, np.ndarray]] = []

    def check(transformed, x, expected):
        cases.append((transformed, x, expected))

    x = values(*shape)
    y = oracle(x)
    check(function, x, y)
    check(lambda v: jax.jvp(function, (v,), (2 * v,))[1], x, 2 * y)

    # The oracle is linear, so its results for a basis are the columns of its matrix. The gradients
    # come from the transpose of this matrix.
    basis = np.eye(x.size, dtype=np.float32).reshape(x.size, *x.shape)
    matrix = np.stack([oracle(e).ravel() for e in basis], axis=1)
    expected = (matrix.T @ y.ravel()).reshape(x.shape)

    def gradient(v):
        return jax.grad(lambda u: jnp.sum(function(u) ** 2) / 2)(v)

    check(gradient, x, expected)
    check(jax.checkpoint(gradient), x, expected)

    check(lambda v: jax.lax.cond(v.sum() < 1e6, function, function, v), x, y)

    def twice(v):
        return jax.lax.scan(lambda c, u: (c, function(u)), None, jnp.stack([v, 2 * v]))[1]

    check(twice, x, np.stack([y, 2 * y], axis=1))

    for dim in range(len(shape) + 1):
        batch = np.stack([x, 3 * x, x + 1], axis=1 + dim)
        slices = np.moveaxis(batch, 1 + dim, 0)
        expected = np.stack([oracle(s) for s in slices], axis=1)
        check(jax.vmap(function, in_axes=dim), batch, expected)
        # A vmap over the collective's own axis communicates nothing, so it needs no mesh.
        own = jax.vmap(function, in_axes=dim, axis_name="i")
        check_equal(np.asarray(own(np.moveaxis(x, 0, dim))), y)
    same = jax.vmap(lambda _: function(x[0]), axis_name="i")(np.arange(RANKS))
    check_equal(np.asarray(same), oracle(np.stack([x[0]] * RANKS)))

    # All cases are one program, because compilation takes most of the time.
    functions, arguments, results = zip(*cases, strict=True)
    together = program(
        lambda values: [f(v) for f, v in zip(functions, values, strict=True)],
        check_vma=check_vma,
        compiler_options=quick_compilation.OPTIONS,
    )
    for actual, expected in zip(together(list(arguments)), results, strict=True):
        check_equal(np.asarray(actual), expected)
