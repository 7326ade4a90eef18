"""jax_cxl.psend and jax_cxl.precv."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from jax_cxl._lowering.primitives import named_axis
from jax_cxl._lowering.primitives.documentation import documented
from jax_cxl._lowering.primitives.named_axis import AxisName
from jax_cxl.ops.ppermute import ppermute, sources_of


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["axes", "sources"]
)
@dataclasses.dataclass(frozen=True)
class SendToken:
    """The result of `psend`, which `precv` with the same pairs takes."""

    value: Any
    axes: named_axis.Axes
    sources: tuple[int, ...]


@documented()
def psend(x: Any, axis_name: AxisName, perm: Sequence[tuple[int, int]]) -> Any:
    """Sends x from rank to rank along a named axis. `precv` returns the values that arrive.

    Drop-in for `jax.lax.psend` that works on every platform. `psend` and `precv` together are
    `ppermute`, and have its derivative. All ranks run both: `perm` names the ranks that send.

    Args:
      axis_name: mesh axis, or several, as for `ppermute`.
      perm: pairs (source, destination) of axis indices. An index is the source of at most one
        pair, and the destination of at most one.

    Returns:
      A token for each array of x. A token is a pytree, and may go through
      `jax.lax.optimization_barrier`.

    Raises:
      TypeError: perm is neither a list nor a tuple.
      ValueError: an index is out of bounds, or is the source or the destination of two pairs.

    Example:
      >>> def body(x):
      ...   token = jax_cxl.psend(x, "i", [(0, 3)])
      ...   return jax_cxl.precv(token, jax.ShapeDtypeStruct(x.shape, x.dtype), "i", [(0, 3)])
      >>> send = jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(send)(jnp.arange(1, 5))
      Array([0, 0, 0, 1], dtype=int32)
    """
    axes = named_axis.permuted_axes_of("psend", axis_name)
    sources = sources_of("psend", axes, perm)
    return jax.tree.map(lambda leaf: SendToken(ppermute(leaf, axes, perm), axes, sources), x)


@documented()
def precv(
    token: SendToken,
    out_shape: Any,
    axis_name: AxisName,
    perm: Sequence[tuple[int, int]],
) -> Any:
    """Receives the values that a `psend` with the same pairs has sent.

    Drop-in for `jax.lax.precv` that works on every platform. The token must come from `psend`,
    because it matches the receive with its send. A token of `jax.lax.create_token` does not work.

    Args:
      token: the token that `psend` returned for the array.
      out_shape: `jax.ShapeDtypeStruct` of the array.
      axis_name: mesh axis, or several, as given to `psend`.
      perm: pairs (source, destination), as given to `psend`.

    Returns:
      An array: the x of the source, or zeros on ranks without a source.

    Raises:
      TypeError: the token does not come from `psend`.
      ValueError: the token belongs to another axis, permutation, shape or dtype.

    Example:
      >>> def body(x):
      ...   token = jax_cxl.psend(x, "i", [(0, 3)])
      ...   return jax_cxl.precv(token, jax.ShapeDtypeStruct(x.shape, x.dtype), "i", [(0, 3)])
      >>> send = jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(send)(jnp.arange(1, 5))
      Array([0, 0, 0, 1], dtype=int32)
    """
    axes = named_axis.permuted_axes_of("precv", axis_name)
    sources = sources_of("precv", axes, perm)
    if not isinstance(token, SendToken):
        raise TypeError(f"jax_cxl.precv takes the token of a jax_cxl.psend, got {type(token)}.")
    if (token.axes, token.sources) != (axes, sources):
        raise ValueError(
            f"jax_cxl.precv over {axes} with perm={perm} got the token of a psend over"
            f" {token.axes}, with another axis or with other pairs. Pass the axis and the pairs of"
            " the psend."
        )
    sent = token.value
    if sent.shape != tuple(out_shape.shape) or sent.dtype != out_shape.dtype:
        raise ValueError(
            f"jax_cxl.precv: out_shape is {out_shape}, but the psend sent"
            f" {sent.dtype}{list(sent.shape)}. Pass the shape and dtype of the sent array."
        )
    return lax.convert_element_type(sent, out_shape.dtype)  # no longer weakly typed
