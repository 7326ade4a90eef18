"""jax_cxl.moe_combine."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_cxl._lowering.primitives import named_axis
from jax_cxl.ops.all_gather import all_gather
from jax_cxl.ops.moe import exchange
from jax_cxl.ops.moe.handle import MoeHandle


def moe_combine(y: Any, weights: Any, handle: MoeHandle) -> Any:
    """Brings the experts' results back to their tokens, and sums them with weights.

    The result of token t is the sum of weights[t, c] * (the row of y for choice c of token t) over
    its choices c. Choices that were dropped, or choose no expert, add nothing.

    A rank first adds up the rows of its own experts that belong to the same token, in the order of
    the token's choices, and rounds the sum to the dtype of y. The token's owner then reads at most
    one row of each rank and adds these in the order of the ranks. Both sums are in float32, or in
    float64 for y in float64. So the result is the same in every run. A rank with a single expert
    does not add up rows: if a token chooses that expert twice, the token's owner reads and adds
    both rows.

    Derivatives in reverse mode (`jax.grad`, `jax.vjp`), with respect to y and weights, are exact.

    Args:
      y: the experts' results in the shape of the rows of `moe_dispatch`, with any number of
        features, in a floating dtype.
      weights: (T, k), floating: the router's weights, for this rank's tokens. None: ones.
      handle: from `moe_dispatch`.

    Returns:
      (T, features of y), in the dtype of y.

    Raises:
      TypeError: y or weights are not floating.
      ValueError: a shape does not fit.

    Example:
      >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> def body(x, experts, weights):
      ...   rows, handle = jax_cxl.moe_dispatch(x, experts, "i", num_experts=8, capacity=2)
      ...   scale = 1. + 2 * jax.lax.axis_index("i") + jnp.arange(2)  # expert e multiplies by e + 1
      ...   y = scale[:, None, None] * rows
      ...   return jax_cxl.moe_combine(y, weights, handle)
      >>> layer = jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> experts = jnp.array([[0, 7], [1, 2], [3, 3], [4, -1]])
      >>> jax.jit(layer)(jnp.ones((4, 1)), experts, jnp.full((4, 2), 0.5)).ravel()
      Array([4.5, 2.5, 4. , 2.5], dtype=float32)
    """
    partial = _add(y, weights, handle)
    return exchange.deliver(partial, handle)


def moe_combine_halves(y: Any, weights: Any, handle: MoeHandle) -> tuple[list, Any, Callable]:
    """Starts `moe_combine` on a GPU. Returns three values, as `split_function.start` does."""
    partial = _add(y, weights, handle)
    if not handle.axes:
        return [], exchange.deliver(partial, handle), lambda _, others: others

    def rest(results, handle):
        return exchange.add_ranks(results[0], handle)

    return exchange.start_deliver(partial, handle), handle, rest


def _add(y: Any, weights: Any, handle: MoeHandle) -> Any:
    """Checks the arguments, and returns the weighted sums of this rank's rows of each token."""
    y = jnp.asarray(y)
    operands = {"y": y}
    if weights is not None:
        operands["weights"] = weights = jnp.asarray(weights)
    for label, value in operands.items():
        if not jnp.issubdtype(value.dtype, np.floating):
            raise TypeError(f"jax_cxl.moe_combine: {label} must be floating, got {value.dtype}.")
    rows, tokens = len(handle.assignment), len(handle.back)
    if y.ndim not in (2, 3) or int(np.prod(y.shape[:-1])) != rows:
        raise ValueError(
            f"jax_cxl.moe_combine: y must have the {rows} rows of moe_dispatch, got shape"
            f" {y.shape}."
        )
    if weights is not None and weights.shape != (tokens, handle.choices):
        raise ValueError(
            f"jax_cxl.moe_combine: weights must have the shape of the experts"
            f" {(tokens, handle.choices)}, got {weights.shape}."
        )
    axes = handle.axes
    y, *others, _ = named_axis.vary_alike(axes, *operands.values(), handle.back)
    everyone = all_gather(others[0], axes, tiled=True).ravel() if others else None
    return exchange.add(y.reshape(rows, y.shape[-1]), everyone, handle)
