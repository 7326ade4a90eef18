"""A random collective of the soak: its call, and its results and transpose in NumPy."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cxl
from matrix import reference

Array = np.ndarray
RANKS = reference.RANKS
MESH = {"i": 2, "j": RANKS // 2}
_AXES: tuple[tuple[str, ...], ...] = (("i",), ("j",), ("i", "j"), ("j", "i"))
_OPS = ("sum", "prod", "min", "max", "and", "or")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective that every rank calls.

    Attributes:
      text: what it is.
      call: from a rank's value to its result.
      oracle: from the values of all ranks to their results.
      transpose: from cotangents of all ranks' results to those of their values; None if the
        collective is not linear, or if JAX does not differentiate with respect to the dtype.
      shape: shape of a rank's value.
      dtype: dtype of the values.
    """

    text: str
    call: Callable[[Any], Any]
    oracle: Callable[[Array], Array]
    transpose: Callable[[Array], Array] | None
    shape: tuple[int, ...]
    dtype: str


def random_collective(
    rng: np.random.Generator, dtypes: Sequence[str] = reference.DTYPES
) -> Collective:
    """Returns a collective with a random operation, dtype, shape, axes, groups and arguments."""
    axes = _AXES[rng.integers(len(_AXES))]
    operation = _OPERATIONS[rng.integers(len(_OPERATIONS))]
    if operation is _ppermute:
        # Versions of JAX disagree on ppermute over axes that are not in the mesh's order: see
        # tests/ops/as_jax_lax_test.py.
        axes = tuple(sorted(axes, key=list(MESH).index))
    flat = np.arange(RANKS).reshape(tuple(MESH.values()))
    order = [list(MESH).index(axis) for axis in axes]
    size = int(np.prod([MESH[axis] for axis in axes]))
    # `rows` has a row for each group: its ranks, in the order in which the axes count them.
    rows = np.moveaxis(flat, order, range(len(order))).reshape(size, -1).T
    options: dict[str, Any] = {}
    if operation in _WITH_GROUPS and rng.random() < 0.3:
        groups = (
            rng.permutation(size).reshape(-1, int(rng.choice([1, min(2, size), size]))).tolist()
        )
        options["axis_index_groups"] = groups
        rows = np.concatenate([rows[:, group] for group in groups])
    while True:
        dtype = dtypes[rng.integers(len(dtypes))]
        op = _OPS[rng.integers(len(_OPS))]
        if dtype == "bool" and operation is _psum_scatter:
            continue
        if "complex" in dtype and (op in ("min", "max") or operation in _ORDERED):
            continue
        if operation not in _BITWISE and (operation is not _scan or op not in ("and", "or")):
            break
        if not jnp.issubdtype(reference.dtype_of(dtype), jnp.inexact):
            break
    shape = _random_shape(rng)
    call, oracle, transpose, shape, text = operation(rng, rows.shape[1], shape, op)
    name = axes if len(axes) > 1 else axes[0]
    text = f"{text}, axes {axes}, {options}: {dtype}{list(shape)}"
    return Collective(
        text,
        lambda x: call(x, name, **options),
        _by_group(oracle, rows),
        _by_group(transpose, rows) if transpose and reference.differentiable(dtype) else None,
        shape,
        dtype,
    )


def _by_group(
    function: Callable[[Array], Sequence[Array]], rows: Array
) -> Callable[[Array], Array]:
    """Returns a function of the values of all ranks that applies `function` to each group."""

    def of_all(x: Array) -> Array:
        results: list[Any] = [None] * RANKS
        for row in rows:
            for rank, result in zip(row, function(x[row]), strict=True):
                results[rank] = result
        return np.stack(results)

    return of_all


# XLA's compiler of JAX 0.11.2 ends with a segmentation fault if a shard_map has an empty argument
# beside others (in Shardy: ManualComputationUnusedInputsPattern). 0.11.1 and 0.12 do not.
_EMPTY_ARRAYS = jax.__version_info__ != (0, 11, 2)


def _random_shape(rng: np.random.Generator) -> tuple[int, ...]:
    shape = [int(d) for d in rng.integers(1, 6, rng.integers(1, 4))]
    kind = rng.random()
    if kind < 0.05 and _EMPTY_ARRAYS:
        shape[int(rng.integers(len(shape)))] = 0
    elif kind < 0.25:
        shape[int(rng.integers(len(shape)))] = int(rng.integers(1, 400))
    elif kind < 0.27:
        shape[int(rng.integers(len(shape)))] = int(rng.integers(1, 20_000))
    return tuple(shape)


def _divisible(rng, shape: tuple[int, ...], n: int, tiled: bool) -> tuple[tuple[int, ...], int]:
    dim = int(rng.integers(len(shape)))
    length = shape[dim] * n if tiled else n
    return (*shape[:dim], length, *shape[dim + 1 :]), dim


def _joined(parts: list[Array], dim: int, tiled: bool) -> Array:
    return np.concatenate(parts, dim) if tiled else np.stack(parts, dim)


def _divided(x: Array, n: int, dim: int, tiled: bool) -> list[Array]:
    parts = np.split(x, n, dim)
    return parts if tiled else [part.squeeze(dim) for part in parts]


def _all_gather(rng, n, shape, op):
    tiled = bool(rng.integers(2))
    dim = int(rng.integers(len(shape) + (not tiled)))
    return (
        lambda x, a, **k: jax_cxl.all_gather(x, a, axis=dim, tiled=tiled, **k),
        lambda x: [_joined(list(x), dim, tiled)] * n,
        lambda ct: _divided(reference.fold(ct), n, dim, tiled),
        shape,
        f"all_gather axis={dim} tiled={tiled}",
    )


def _psum(rng, n, shape, op):
    total = lambda x: [reference.fold(x)] * n  # noqa: E731
    return jax_cxl.psum, total, total, shape, "psum"


def _pmax(rng, n, shape, op):
    return jax_cxl.pmax, lambda x: [reference.fold(x, "max")] * n, None, shape, "pmax"


def _pmin(rng, n, shape, op):
    return jax_cxl.pmin, lambda x: [reference.fold(x, "min")] * n, None, shape, "pmin"


def _pand(rng, n, shape, op):
    return jax_cxl.pand, lambda x: [reference.fold(x, "and")] * n, None, shape, "pand"


def _por(rng, n, shape, op):
    return jax_cxl.por, lambda x: [reference.fold(x, "or")] * n, None, shape, "por"


def _psum_scatter(rng, n, shape, op):
    tiled = bool(rng.integers(2))
    shape, dim = _divisible(rng, shape, n, tiled)
    return (
        lambda x, a, **k: jax_cxl.psum_scatter(x, a, scatter_dimension=dim, tiled=tiled, **k),
        lambda x: _divided(reference.fold(x), n, dim, tiled),
        lambda ct: [_joined(list(ct), dim, tiled)] * n,
        shape,
        f"psum_scatter scatter_dimension={dim} tiled={tiled}",
    )


def _all_to_all(rng, n, shape, op):
    tiled = bool(rng.integers(2))
    shape, split = _divisible(rng, shape, n, tiled)
    concat = int(rng.integers(len(shape)))

    def exchange(x, split, concat):
        parts = [_divided(v, n, split, tiled) for v in x]
        return [_joined([p[r] for p in parts], concat, tiled) for r in range(n)]

    return (
        lambda x, a, **k: jax_cxl.all_to_all(x, a, split, concat, tiled=tiled, **k),
        lambda x: exchange(x, split, concat),
        lambda ct: exchange(ct, concat, split),
        shape,
        f"all_to_all {split} {concat} tiled={tiled}",
    )


def _ppermute(rng, n, shape, op):
    sources, destinations = rng.permutation(n).tolist(), rng.permutation(n).tolist()
    perm = list(zip(sources, destinations, strict=True))[: int(rng.integers(n + 1))]

    def permute(x, perm):
        y = np.zeros_like(x)
        for source, destination in perm:
            y[destination] = x[source]
        return y

    return (
        lambda x, a: jax_cxl.ppermute(x, a, perm),
        lambda x: permute(x, perm),
        lambda ct: permute(ct, [(destination, source) for source, destination in perm]),
        shape,
        f"ppermute {perm}",
    )


def _at(root: int, n: int, y: Array) -> list[Array]:
    return [y if r == root else np.zeros_like(y) for r in range(n)]


def _broadcast(rng, n, shape, op):
    root = int(rng.integers(n))
    return (
        lambda x, a: jax_cxl.broadcast(x, a, root=root),
        lambda x: [x[root]] * n,
        lambda ct: _at(root, n, reference.fold(ct)),
        shape,
        f"broadcast root={root}",
    )


def _reduce(rng, n, shape, op):
    root = int(rng.integers(n))
    return (
        lambda x, a: jax_cxl.reduce(x, a, root=root),
        lambda x: _at(root, n, reference.fold(x)),
        lambda ct: [ct[root]] * n,
        shape,
        f"reduce root={root}",
    )


def _gather(rng, n, shape, op):
    root, tiled = int(rng.integers(n)), bool(rng.integers(2))
    dim = int(rng.integers(len(shape) + (not tiled)))
    return (
        lambda x, a: jax_cxl.gather(x, a, root=root, axis=dim, tiled=tiled),
        lambda x: _at(root, n, _joined(list(x), dim, tiled)),
        lambda ct: _divided(ct[root], n, dim, tiled),
        shape,
        f"gather root={root} axis={dim} tiled={tiled}",
    )


def _scatter(rng, n, shape, op):
    root, tiled = int(rng.integers(n)), bool(rng.integers(2))
    shape, dim = _divisible(rng, shape, n, tiled)
    return (
        lambda x, a: jax_cxl.scatter(x, a, root=root, axis=dim, tiled=tiled),
        lambda x: _divided(x[root], n, dim, tiled),
        lambda ct: _at(root, n, _joined(list(ct), dim, tiled)),
        shape,
        f"scatter root={root} axis={dim} tiled={tiled}",
    )


def _scan(rng, n, shape, op):
    reverse, exclusive = bool(rng.integers(2)), bool(rng.integers(2))
    function = jax_cxl.pexscan if exclusive else jax_cxl.pscan

    def reduce(x, reverse):
        results = []
        for r in range(n):
            part = x[r + exclusive :] if reverse else x[: r + 1 - exclusive]
            dtype = reference.fold(x[:1], op).dtype
            empty = np.full(x.shape[1:], reference.neutral(dtype, op))
            results.append(reference.fold(part, op) if len(part) else empty)
        return results

    return (
        lambda x, a: function(x, a, op=op, reverse=reverse),
        lambda x: reduce(x, reverse),
        (lambda ct: reduce(ct, not reverse)) if op == "sum" else None,
        shape,
        f"{function.__name__} {op} reverse={reverse}",
    )


_WITH_GROUPS = (_all_gather, _psum, _pmax, _pmin, _pand, _por, _psum_scatter, _all_to_all)
_OPERATIONS = (*_WITH_GROUPS, _ppermute, _broadcast, _reduce, _gather, _scatter, _scan)
_ORDERED = (_pmax, _pmin)
_BITWISE = (_pand, _por)
