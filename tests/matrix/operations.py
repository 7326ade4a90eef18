"""The operations of the matrix: how to call them, and how NumPy computes their results.

An *oracle* takes the values of all ranks, stacked along a first dimension, and returns their
results in the same way.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_cxl
from matrix import reference

Array = np.ndarray
RANKS = reference.RANKS
# With four ranks, the groups are [[0, 2], [3, 1]].
GROUPS = [list(range(0, RANKS, 2)), list(range(RANKS - 1, 0, -2))]
PERM = [(0, 1), (3, 2), (1, 3)] if RANKS > 3 else [(0, 1)]
SHUFFLE = [(r - 1) % RANKS for r in range(RANKS)]
ROOT = 2 % RANKS
LENGTH = 8  # of dimensions that are divided among the ranks


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation with its arguments.

    Attributes:
      name: its name in the table.
      call: runs it on a rank's value, over a named axis.
      oracle: computes the results of all ranks in NumPy.
      shape: shape of a rank's value.
      linear: whether it has derivatives.
      ordered: whether it compares numbers, so that it takes no complex numbers.
      bitwise: whether it takes only bool and integers.
      groups: whether it takes axis_index_groups.
      invariant: whether check_vma types the result as equal on all ranks. If so, the transpose of
        the operation copies the cotangent, and divides it by `divisor`.
      divisor: what the result is divided by.
      refuses: a dtype that it does not take, as in jax.lax.
    """

    name: str
    call: Callable[[Any, str], Any]
    oracle: Callable[[Array], Array]
    shape: tuple[int, ...] = (3, 2)
    linear: bool = True
    ordered: bool = False
    bitwise: bool = False
    groups: bool = False
    invariant: bool = False
    divisor: int = 1
    refuses: str = ""


def _everywhere(result: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: np.stack([result(x)] * len(x))


def _at(root: int, result: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def oracle(x):
        y = result(x)
        return np.stack([y if r == root else np.zeros_like(y) for r in range(len(x))])

    return oracle


def _by_group(oracle: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def grouped(x):
        results: list[Any] = [None] * len(x)
        for group in GROUPS:
            for i, result in zip(group, oracle(x[group]), strict=True):
                results[i] = result
        return np.stack(results)

    return grouped


def _mean(x: Array) -> Array:
    # JAX does the division, because JAX's rules decide on the dtype of the result.
    return np.asarray(jnp.asarray(reference.fold(x)) / len(x))


def _first(op: str) -> Callable[[Array], Array]:
    def index(x):
        hits = x == reference.fold(x, op)
        return np.argmax(hits, axis=0).astype(np.int32)

    return _everywhere(index)


def _scattered(x: Array) -> Array:
    return np.stack(np.split(reference.fold(x), len(x)))


def _exchanged(x: Array) -> Array:
    parts = [np.split(v, len(x)) for v in x]
    return np.stack([np.concatenate([p[r] for p in parts], axis=1) for r in range(len(x))])


def _permuted(x: Array) -> Array:
    y = np.zeros_like(x)
    for source, destination in PERM:
        y[destination] = x[source]
    return y


def _scanned(op: str, *, exclusive: bool = False, reverse: bool = False) -> Callable:
    def oracle(x):
        results = []
        for rank in range(len(x)):
            part = x[rank + exclusive :] if reverse else x[: rank + 1 - exclusive]
            if len(part):
                results.append(reference.fold(part, op))
            else:
                dtype = reference.fold(x[:1], op).dtype
                results.append(np.full(x.shape[1:], reference.neutral(dtype, op)))
        return np.stack(results)

    return oracle


# Rank r sends (r + peer) % 3 rows to each peer. TABLES[r] has the four arguments of
# ragged_all_to_all that describe these rows.
_SIZES = np.add.outer(np.arange(RANKS), np.arange(RANKS)) % 3
_INTO = int(_SIZES.sum(0).max()) + 1


def _starts(sizes: Array) -> Array:
    return np.cumsum(sizes, 1) - sizes


TABLES = np.stack([_starts(_SIZES), _SIZES, _starts(_SIZES.T).T, _SIZES.T], 1).astype(np.int32)


def _ragged(x: Any, axis: str) -> Any:
    table = jnp.asarray(TABLES)[lax.axis_index(axis)]
    output = jnp.zeros((_INTO, *x.shape[1:]), x.dtype)
    return jax_cxl.ragged_all_to_all(x, output, *table, axis_name=axis)


def _ragged_oracle(x: Array) -> Array:
    y = np.zeros((len(x), _INTO, *x.shape[2:]), x.dtype)
    for sender in range(len(x)):
        for receiver, (first, size, to, _) in enumerate(TABLES[sender].T):
            y[receiver, to : to + size] = x[sender, first : first + size]
    return y


# The rows that each rank takes: some of them twice, and some that do not exist.
_TAKEN = (np.arange(RANKS)[:, None] * 5 + np.arange(7) * 3) % (RANKS * LENGTH + 2)


def _take_rows(x: Any, axis: str) -> Any:
    indices = jnp.asarray(_TAKEN, np.int32)[lax.axis_index(axis)]
    return jax_cxl.take_rows(x, indices, axis)


def _take_rows_oracle(x: Array) -> Array:
    whole = x.reshape(-1, *x.shape[2:])
    inside = (len(whole) > _TAKEN).reshape(*_TAKEN.shape, *[1] * (x.ndim - 2))
    return np.where(inside, whole[np.minimum(_TAKEN, len(whole) - 1)], np.zeros((), x.dtype))


def _send_and_receive(x: Any, axis: str) -> Any:
    token = jax_cxl.psend(x, axis, PERM)
    return jax_cxl.precv(token, jax.ShapeDtypeStruct(x.shape, x.dtype), axis, PERM)


_total = _everywhere(reference.fold)
_gathered = _everywhere(lambda x: np.stack(list(x), axis=1))

OPERATIONS: tuple[Operation, ...] = (
    Operation("all_gather", lambda x, a: jax_cxl.all_gather(x, a, axis=1), _gathered),
    Operation(
        "all_gather, tiled",
        lambda x, a: jax_cxl.all_gather(x, a, tiled=True),
        _everywhere(np.concatenate),
    ),
    Operation(
        "all_gather, groups",
        lambda x, a: jax_cxl.all_gather(x, a, axis=1, axis_index_groups=GROUPS),
        _by_group(_gathered),
        groups=True,
    ),
    Operation(
        "all_gather, to='invarying'",
        lambda x, a: jax_cxl.all_gather(x, a, axis=1, to="invarying"),
        _gathered,
        invariant=True,
    ),
    Operation(
        "all_gather, started",
        lambda x, a: jax_cxl.start(jax_cxl.all_gather, x, a, axis=1).done(),
        _gathered,
    ),
    Operation("psum", jax_cxl.psum, _total, invariant=True),
    Operation(
        "psum, groups",
        lambda x, a: jax_cxl.psum(x, a, axis_index_groups=GROUPS),
        _by_group(_total),
        groups=True,
    ),
    Operation(
        "psum, started",
        lambda x, a: jax_cxl.start(jax_cxl.psum, x, a).done(),
        _total,
        invariant=True,
    ),
    Operation("pmean", jax_cxl.pmean, _everywhere(_mean), invariant=True, divisor=RANKS),
    Operation(
        "pmax",
        jax_cxl.pmax,
        _everywhere(lambda x: reference.fold(x, "max")),
        linear=False,
        ordered=True,
    ),
    Operation(
        "pmin",
        jax_cxl.pmin,
        _everywhere(lambda x: reference.fold(x, "min")),
        linear=False,
        ordered=True,
    ),
    Operation(
        "pand",
        jax_cxl.pand,
        _everywhere(lambda x: reference.fold(x, "and")),
        linear=False,
        bitwise=True,
    ),
    Operation(
        "por",
        jax_cxl.por,
        _everywhere(lambda x: reference.fold(x, "or")),
        linear=False,
        bitwise=True,
    ),
    Operation("pargmax", jax_cxl.pargmax, _first("max"), linear=False, ordered=True),
    Operation("pargmin", jax_cxl.pargmin, _first("min"), linear=False, ordered=True),
    Operation(
        "psum_scatter",
        lambda x, a: jax_cxl.psum_scatter(x, a, scatter_dimension=1),
        lambda x: np.moveaxis(reference.fold(x), 1, 0),
        shape=(3, RANKS),
        refuses="bool",
    ),
    Operation(
        "psum_scatter, tiled",
        lambda x, a: jax_cxl.psum_scatter(x, a, tiled=True),
        _scattered,
        shape=(LENGTH, 3),
        refuses="bool",
    ),
    Operation(
        "psum_scatter, groups",
        lambda x, a: jax_cxl.psum_scatter(x, a, axis_index_groups=GROUPS, tiled=True),
        _by_group(_scattered),
        shape=(LENGTH, 3),
        refuses="bool",
        groups=True,
    ),
    Operation(
        "all_to_all",
        lambda x, a: jax_cxl.all_to_all(x, a, 1, 0),
        lambda x: np.moveaxis(x, 2, 0),
        shape=(3, RANKS),
    ),
    Operation(
        "all_to_all, tiled",
        lambda x, a: jax_cxl.all_to_all(x, a, 0, 1, tiled=True),
        _exchanged,
        shape=(LENGTH, 3),
    ),
    Operation(
        "all_to_all, groups",
        lambda x, a: jax_cxl.all_to_all(x, a, 0, 1, axis_index_groups=GROUPS, tiled=True),
        _by_group(_exchanged),
        shape=(LENGTH, 3),
        groups=True,
    ),
    Operation("ragged_all_to_all", _ragged, _ragged_oracle, shape=(int(_SIZES.sum(1).max()), 2)),
    Operation(
        "pswapaxes",
        lambda x, a: jax_cxl.pswapaxes(x, a, 1),
        lambda x: np.moveaxis(x, 2, 0).swapaxes(1, 2),
        shape=(3, RANKS),
    ),
    Operation("ppermute", lambda x, a: jax_cxl.ppermute(x, a, PERM), _permuted),
    Operation("take_rows", _take_rows, _take_rows_oracle, shape=(LENGTH, 3)),
    Operation("pshuffle", lambda x, a: jax_cxl.pshuffle(x, a, SHUFFLE), lambda x: x[SHUFFLE]),
    Operation("psend, precv", _send_and_receive, _permuted),
    Operation("pbroadcast", lambda x, a: jax_cxl.pbroadcast(x, a, 1), _everywhere(lambda x: x[1])),
    Operation(
        "broadcast",
        lambda x, a: jax_cxl.broadcast(x, a, root=ROOT),
        _everywhere(lambda x: x[ROOT]),
    ),
    Operation("reduce", lambda x, a: jax_cxl.reduce(x, a, root=1), _at(1, reference.fold)),
    Operation(
        "gather",
        lambda x, a: jax_cxl.gather(x, a, root=RANKS - 1),
        _at(RANKS - 1, lambda x: np.stack(list(x))),
    ),
    Operation(
        "scatter",
        lambda x, a: jax_cxl.scatter(x, a, root=ROOT, tiled=True),
        lambda x: np.stack(np.split(x[ROOT], len(x))),
        shape=(LENGTH, 3),
    ),
    Operation("barrier", jax_cxl.barrier, lambda x: x),
    Operation("pscan", jax_cxl.pscan, _scanned("sum")),
    Operation(
        "pscan, prod",
        lambda x, a: jax_cxl.pscan(x, a, op="prod"),
        _scanned("prod"),
        linear=False,
    ),
    Operation(
        "pscan, max, reverse",
        lambda x, a: jax_cxl.pscan(x, a, op="max", reverse=True),
        _scanned("max", reverse=True),
        linear=False,
        ordered=True,
    ),
    Operation(
        "pexscan, reverse",
        lambda x, a: jax_cxl.pexscan(x, a, reverse=True),
        _scanned("sum", exclusive=True, reverse=True),
    ),
    Operation(
        "pexscan, min",
        lambda x, a: jax_cxl.pexscan(x, a, op="min"),
        _scanned("min", exclusive=True),
        linear=False,
        ordered=True,
    ),
    Operation(
        "pexscan, and, reverse",
        lambda x, a: jax_cxl.pexscan(x, a, op="and", reverse=True),
        _scanned("and", exclusive=True, reverse=True),
        linear=False,
        bitwise=True,
    ),
)
