"""Batching rules: how a collective behaves under `jax.vmap`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.interpreters import batching

from jax_cxl._lowering.primitives import dtypes


def register(primitive: Any, other_axis: Callable, own_axis: Callable) -> None:
    """Registers the batching rule of a primitive with parameters `axes` and `groups`.

    Args:
      primitive: the primitive.
      other_axis: called as (x, d, **params) if the axis of vmap is not among `axes`. d is the
        batch dimension of x. Returns the result and its batch dimension.
      own_axis: called as (x, d, axis_size, **params) if `axes` is only the axis of vmap. d is None
        for an operand without batch dimension. Returns the result and its batch dimension.
    """

    def rule(axis_data, operands, dims, **params):
        (x,), (d,) = operands, dims
        axes = params["axes"]
        if axis_data.name not in axes:
            if d is None:
                return primitive.bind(x, **params), None
            return other_axis(x, d, **params)
        _refuse_groups(primitive, params.get("groups"), axis_data.name)
        if len(axes) > 1:
            raise NotImplementedError(
                f"jax_cxl.{primitive.name} over {axes}, of which {axis_data.name!r} is"
                " an axis of jax.vmap: call it once for each axis."
            )
        return own_axis(x, d, axis_data.size, **params)

    batching.fancy_primitive_batchers[primitive] = rule


def register_reduction(primitive: Any, reduce: Callable, unmapped: Callable) -> None:
    """Registers the batching rule of a reduction whose result has the shape of the operand.

    Args:
      primitive: the primitive, with parameters `axes` and `groups`.
      reduce: called as (x, dims) to reduce positional dimensions.
      unmapped: called as (x, size) to reduce `size` equal arrays x.
    """

    def rule(axis_data, operands, dims, *, axes, groups, **params):
        (x,), (d,) = operands, dims
        if axis_data.name not in axes:
            return primitive.bind(x, axes=axes, groups=groups, **params), d
        _refuse_groups(primitive, groups, axis_data.name)
        x = (
            unmapped(x, axis_data.size)
            if d is None
            else dtypes.reduce_in_one_rounding(reduce, x, (d,))
        )
        rest = tuple(axis for axis in axes if axis != axis_data.name)
        return (primitive.bind(x, axes=rest, groups=None, **params) if rest else x), None

    batching.fancy_primitive_batchers[primitive] = rule


def _refuse_groups(primitive: Any, groups: Any, axis: Any) -> None:
    if groups is not None:
        raise NotImplementedError(
            f"jax_cxl.{primitive.name}: axis_index_groups do not work over the axis {axis!r} of"
            " jax.vmap. Leave the groups out, or use a mesh axis."
        )


def to_front(x: Any, d: int | None, size: int) -> Any:
    """Returns x with its batch dimension d first; None stands for equal elements of the batch."""
    return jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)


def require_whole_axis(name: str, axes: Any, groups: Any, axis: Any) -> None:
    """Checks that a collective over an axis of vmap has no other axes and no groups.

    Raises:
      NotImplementedError: the collective has other axes or groups.
    """
    if groups is not None or len(axes) > 1:
        raise NotImplementedError(
            f"jax_cxl.{name} over {axes}, of which {axis!r} is an axis of jax.vmap, works only"
            " without axis_index_groups and without other axes. Call it once for each axis."
        )
