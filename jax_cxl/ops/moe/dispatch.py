"""jax_cxl.moe_dispatch."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cxl._lowering.primitives import arguments, indices, named_axis
from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl._lowering.primitives.named_axis import AxisName
from jax_cxl.ops.moe import exchange, routing
from jax_cxl.ops.moe.handle import MoeHandle


@documented()
def moe_dispatch(
    x: Any,
    experts: Any,
    axis_name: AxisName | None = None,
    *,
    num_experts: int | None = None,
    capacity: int | None = None,
    max_rows: int | None = None,
    float8_block: int | None = None,
) -> tuple[Any, MoeHandle]:
    """Brings tokens to the ranks of their experts, grouped by expert.

    With n ranks, rank r holds the num_experts / n experts from number r * num_experts / n on. Every
    rank publishes the tokens that other ranks want, each once. Every rank reads the tokens that its
    experts want: a token that goes to several experts of a rank is read once. The rows of an
    expert are in the order of the ranks, then of their tokens, then of a token's choices.

    Shapes are static, so the number of rows has a bound. Assignments of tokens to experts beyond
    this bound are dropped: `moe_combine` adds nothing for them, and `MoeHandle.dropped` counts
    them. The first assignments, in the order of the ranks and tokens, stay.

    Derivatives in reverse mode (`jax.grad`, `jax.vjp`) are exact, and move rows the other way.
    With `float8_block` the cotangents are those of a dispatch without rounding, in the dtype of x
    ("straight through").

    Args:
      x: (T, D): this rank's tokens, of any dtype. T is the same on all ranks.
      experts: (T, k), of any integer dtype: the experts that a router has chosen for each token.
        Numbers outside of 0 to num_experts - 1, such as -1 for padding, choose none. This may also
        be the handle of an earlier dispatch, to send other values of the same tokens, such as
        cotangents, the same way. Then only x, the handle and `float8_block` are used, and nothing
        is routed again.
      axis_name: mesh axis over whose ranks the experts are spread, or several in the order in which
        they count ranks.
      num_experts: experts of all ranks, a multiple of the number of ranks.
      capacity: number of rows of each expert. By default an expert has a row for each token that
        chose it, and the rows of a rank follow each other without gaps.
      max_rows: without capacity, rows of this rank. The default is the largest possible number,
        ranks * T * k, so that nothing is dropped. With many ranks this needs a lot of memory.
      float8_block: sends the tokens as float8_e4m3fn. This many elements of a row, for example 128
        or D, share a float32 scale. It must divide D. By default tokens are sent in their own
        dtype.

    Returns:
      Rows and a `MoeHandle` for `moe_combine`. With capacity, the rows are (experts of a rank,
      capacity, D), and an expert's rows beyond its `MoeHandle.group_sizes` are zeros. Without it,
      they are (max_rows, D), expert after expert without gaps, as `jax.lax.ragged_dot` takes them,
      then zeros.

    Raises:
      TypeError: experts or a number are not integers, x is not floating with float8_block, or
        axis_name or num_experts is missing.
      ValueError: a shape or a number does not fit, or the experts of a rank have 2**31 rows or
        more.

    Example:
      >>> def body(x, experts):
      ...   rows, handle = jax_cxl.moe_dispatch(x, experts, "i", num_experts=4, max_rows=3)
      ...   y = 10 * rows  # the expert
      ...   return rows, jax_cxl.moe_combine(y, jnp.ones(experts.shape), handle)
      >>> layer = jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> x = jnp.arange(1., 5.)[:, None]  # a token each
      >>> rows, y = jax.jit(layer)(x, jnp.array([[0, 1], [0, 3], [0, 1], [3, 2]]))
      >>> rows.reshape(4, 3)
      Array([[1., 2., 3.],
             [1., 3., 0.],
             [4., 0., 0.],
             [2., 4., 0.]], dtype=float32)
      >>> y.ravel()
      Array([20., 40., 60., 80.], dtype=float32)
    """
    x, handle = _route(x, experts, axis_name, num_experts, capacity, max_rows, float8_block)
    return _send(x, handle, float8_block), handle


def moe_dispatch_halves(
    x, experts, axis_name=None, *, num_experts=None, capacity=None, max_rows=None, float8_block=None
) -> tuple[list, Any, Callable]:
    """Starts `moe_dispatch` on a GPU. Returns three values, as `split_function.start` does."""
    x, handle = _route(x, experts, axis_name, num_experts, capacity, max_rows, float8_block)
    if float8_block is not None or not handle.axes:
        rows = _send(x, handle, float8_block)
        return [], (rows, handle), lambda _, others: others

    # A short collective after the start would wait for the rows that are under way. So all short
    # collectives come before the start.
    x, handle = lax.optimization_barrier((x, handle))

    def rest(results, handle):
        rows = exchange.expand(results[0], handle)
        return _by_expert(rows, handle), handle

    return exchange.start_fetch(x, handle), handle, rest


def _route(x, experts, axis_name, num_experts, capacity, max_rows, float8_block):
    """Checks the arguments, and returns the tokens and their handle."""
    x = jnp.asarray(x)
    if isinstance(experts, MoeHandle):
        handle = experts
        if x.ndim != 2 or len(x) != len(handle.back):
            raise ValueError(
                f"jax_cxl.moe_dispatch: x must have the {len(handle.back)} tokens of the handle,"
                f" got shape {x.shape}."
            )
        _check_float8(x, float8_block)
        return named_axis.vary_alike(handle.axes, x, handle.back)[0], handle
    experts = indices.integers("moe_dispatch", "experts", experts)
    if axis_name is None or num_experts is None:
        raise TypeError("jax_cxl.moe_dispatch: pass axis_name and num_experts.")
    axes = named_axis.axes_of("moe_dispatch", axis_name)
    limits = _check(x, experts, axes, num_experts, capacity, max_rows)
    _check_float8(x, float8_block)
    experts = indices.below(lax.stop_gradient(experts), num_experts)
    x, experts = named_axis.vary_alike(axes, x, experts)
    return x, routing.route(experts, axes, *limits)


def _send(x: Any, handle: MoeHandle, float8_block: int | None) -> Any:
    if float8_block is not None:
        rows = exchange.dispatch_float8(float8_block, x, handle)
    else:
        rows = exchange.expand(exchange.fetch(x, handle), handle)
    return _by_expert(rows, handle)


def _by_expert(rows: Any, handle: MoeHandle) -> Any:
    if handle.capacity is None:
        return rows
    return rows.reshape(-1, handle.capacity, rows.shape[1])


def _check(x, experts, axes, num_experts, capacity, max_rows):
    """Returns num_experts, capacity and max_rows, after all checks."""
    name = "jax_cxl.moe_dispatch"
    if x.ndim != 2 or experts.ndim != 2 or len(x) != len(experts) or not experts.shape[1]:
        raise ValueError(
            f"{name}: x must be (tokens, features) and experts (tokens, choices), got shapes"
            f" {x.shape} and {experts.shape}. Reshape, for example x.reshape(-1, x.shape[-1])."
        )
    ranks = lax.axis_size(axes)
    num_experts = arguments.positive("moe_dispatch", "num_experts", num_experts)
    if num_experts % ranks:
        raise ValueError(
            f"{name}: num_experts={num_experts} must be a multiple of the {ranks} ranks along"
            f" {axes}."
        )
    if capacity is not None and max_rows is not None:
        raise ValueError(
            f"{name}: pass capacity, the rows of each expert, or max_rows, the rows of a rank, but"
            " not both."
        )
    rows = assignments = ranks * experts.size
    if capacity is not None:
        capacity = arguments.positive("moe_dispatch", "capacity", capacity)
        rows = num_experts // ranks * capacity
    if max_rows is not None:
        rows = max_rows = arguments.positive("moe_dispatch", "max_rows", max_rows)
    indices.check_rows("moe_dispatch", "the assignments of all ranks", assignments)
    indices.check_rows("moe_dispatch", "the experts of a rank", rows)
    return num_experts, capacity, max_rows


def _check_float8(x, float8_block):
    name = "jax_cxl.moe_dispatch"
    if float8_block is None:
        return
    if not jnp.issubdtype(x.dtype, np.floating):
        raise TypeError(f"{name}: float8_block needs floating tokens, got {x.dtype}.")
    float8_block = arguments.positive("moe_dispatch", "float8_block", float8_block)
    if x.shape[1] % float8_block:
        raise ValueError(
            f"{name}: float8_block={float8_block} must divide the {x.shape[1]} features."
        )
