"""Collectives over an axis of `jax.vmap`: one device holds the values of all ranks."""

from typing import Any

import jax.numpy as jnp


def check(name: str, axis: Any, axes: Any, groups: Any, *, others: bool = False) -> None:
    """Checks that a collective over an axis of vmap has no groups, and no unwanted other axes."""
    if groups is not None:
        raise NotImplementedError(
            f"jax_cxl.{name}: axis_index_groups do not work over the axis {axis!r} of jax.vmap."
            " Leave the groups out, or use a mesh axis."
        )
    if len(axes) > 1 and not others:
        raise NotImplementedError(
            f"jax_cxl.{name} over {axes}, of which {axis!r} is an axis of jax.vmap: call it once"
            " for each axis."
        )


def to_front(x: Any, d: int | None, size: int) -> Any:
    """Returns x with its batch dimension d first. If d is None, it repeats x `size` times."""
    return jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
