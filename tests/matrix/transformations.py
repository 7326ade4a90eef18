"""The transformations of the matrix: the computation of a rank, and its expected result.

Each transformation has two sides. `apply` runs in a rank's program. It gets two values of the rank,
x and x2, and the values of all ranks for computations over an axis of vmap. `expect` computes the
results of all ranks from the oracle.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from matrix import reference
from matrix.operations import RANKS, Operation

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Values:
    """The inputs of a cell: in its program those of one rank, in its oracle those of all ranks."""

    pair: Any  # x and x2, stacked; if `ranks`, along the second dimension, else along the first
    everyone: Any  # the values of all ranks, on each rank
    flag: Any  # True, but XLA does not know that
    ranks: bool  # whether the first dimension of `pair` counts ranks

    @property
    def x(self) -> Any:
        return self.pair[:, 0] if self.ranks else self.pair[0]

    @property
    def x2(self) -> Any:
        return self.pair[:, 1] if self.ranks else self.pair[1]


@dataclasses.dataclass(frozen=True)
class Transformation:
    """A transformation of a collective.

    Attributes:
      name: its name in the table.
      apply: maps (call, values) to a rank's result; call takes a value and an axis name.
      expect: maps (operation, values, check_vma) to the results that all ranks must get, stacked.
      derivative: whether it needs the operation's derivative.
    """

    name: str
    apply: Callable[[Callable, Values], Any]
    expect: Callable[[Operation, Values, bool], Any]
    derivative: bool = False


def transpose(operation: Operation, ct: Array, like: Array, check_vma: bool) -> Array:
    """Applies the transposed operation to `ct`, the cotangents of all ranks."""
    if operation.invariant and check_vma:
        if operation.name.startswith("all_gather"):  # Each rank takes its own part.
            return np.stack([ct[r].take(r, axis=1) for r in range(RANKS)])
        return _divide(ct, operation.divisor)
    # All linear operations only copy and add: element i of the operand contributes to element k of
    # the result if matrix[k][i].
    size = like.size
    basis = np.eye(size, dtype=np.float64).reshape(size, *like.shape)
    matrix = np.stack([operation.oracle(e).reshape(-1) for e in basis], axis=1) != 0
    flat = _divide(ct, operation.divisor).reshape(-1)
    result = np.zeros(size, like.dtype)
    for i in range(size):
        parts = flat[matrix[:, i]]
        if len(parts):
            result[i] = reference.fold(parts[:, None])[0]
    return result.reshape(like.shape)


def _divide(x: Array, divisor: int) -> Array:
    return x if divisor == 1 else np.asarray(jnp.asarray(x) / divisor)


def _over(call: Callable, axis: str = "i") -> Callable:
    return lambda v: call(v, axis)


def _twice(call: Callable, v: Values) -> Any:
    inner = jax.jit(_over(call))
    return inner(v.x), inner(v.x2)


def _both(operation: Operation, v: Values, _: bool) -> Any:
    return operation.oracle(v.x), operation.oracle(v.x2)


def _vjp(call: Callable, v: Values) -> Any:
    if not jnp.issubdtype(v.x.dtype, jnp.inexact):
        return jax.grad(lambda u: jnp.sum(call(u, "i")))(v.x)
    value, pull = jax.vjp(_over(call), v.x)
    return value, pull(call(v.x2, "i"))[0]


def _expect_vjp(operation: Operation, v: Values, check_vma: bool) -> Any:
    ct = operation.oracle(v.x2)
    return operation.oracle(v.x), transpose(operation, ct, v.x, check_vma)


def _checkpoint(call: Callable, v: Values) -> Any:
    return jax.checkpoint(_over(call))(v.x)


def _vjp_of_checkpoint(call: Callable, v: Values) -> Any:
    # The policy saves nothing for the backward pass, which may have to run the collective again.
    run = jax.checkpoint(_over(call), policy=jax.checkpoint_policies.nothing_saveable)
    return _vjp(lambda u, _: run(u), v)


def _vmap_other(call: Callable, v: Values) -> Any:
    front = jax.vmap(_over(call))(v.pair)
    return front, jax.vmap(_over(call), -1, -1)(jnp.moveaxis(v.pair, 0, -1))


def _expect_vmap_other(operation: Operation, v: Values, _: bool) -> Any:
    results = [operation.oracle(v.x), operation.oracle(v.x2)]
    return np.stack(results, axis=1), np.stack(results, axis=-1)


def _expect_vmap_own(operation: Operation, v: Values, _: bool) -> Any:
    return np.stack([operation.oracle(v.everyone)] * RANKS)


def _scan(call: Callable, v: Values) -> Any:
    return lax.scan(lambda c, u: (c, call(u, "i")), 0, v.pair)[1]


TRANSFORMATIONS: tuple[Transformation, ...] = (
    Transformation("value", lambda c, v: c(v.x, "i"), lambda o, v, _: o.oracle(v.x)),
    Transformation("jit", _twice, _both),
    Transformation("grad", _vjp, _expect_vjp, derivative=True),
    Transformation("jvp", lambda c, v: jax.jvp(_over(c), (v.x,), (v.x2,)), _both, derivative=True),
    Transformation("vmap", _vmap_other, _expect_vmap_other),
    Transformation(
        "vmap, own axis",
        lambda c, v: jax.vmap(_over(c, "own"), axis_name="own")(v.everyone),
        _expect_vmap_own,
    ),
    Transformation("scan", _scan, lambda o, v, _: np.stack(_both(o, v, False), axis=1)),
    Transformation(
        "cond",
        lambda c, v: lax.cond(v.flag, _over(c), lambda u: c(v.x2, "i"), v.x),
        lambda o, v, _: o.oracle(v.x),
    ),
    Transformation("remat", _checkpoint, lambda o, v, _: o.oracle(v.x)),
    Transformation("grad of remat", _vjp_of_checkpoint, _expect_vjp, derivative=True),
)
