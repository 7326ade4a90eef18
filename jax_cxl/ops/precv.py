"""jax_cxl.precv."""

from collections.abc import Hashable, Sequence
from typing import Any

from jax_cxl import _axis
from jax_cxl.ops.ppermute import sources_of
from jax_cxl.ops.psend import SendToken


def precv(
    token: SendToken,
    out_shape: Any,
    axis_name: Hashable | Sequence[Hashable],
    perm: Sequence[tuple[int, int]],
) -> Any:
    """Receives what a `psend` of the same pairs sent.

    Drop-in for `jax.lax.precv`, on every platform, for tokens of `psend`: nothing else
    matches a receive with its send, so a token of `jax.lax.create_token` does not do.

    Args:
      token: what `psend` returned for the array.
      out_shape: `jax.ShapeDtypeStruct` of the array.
      axis_name: mesh axis, or several, as given to `psend`.
      perm: pairs (source, destination), as given to `psend`.

    Returns:
      What the source sent, or zeros on ranks without one.

    Raises:
      NameError: the axis is not bound, as outside `jax.shard_map`.
      TypeError: the token is not one of `psend`.
      ValueError: the token is that of another axis, permutation, shape or dtype.

    Example:
      >>> mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> def body(x):
      ...   token = jax_cxl.psend(x, "i", [(0, 3)])
      ...   return jax_cxl.precv(token, jax.ShapeDtypeStruct(x.shape, x.dtype), "i", [(0, 3)])
      >>> send = jax.shard_map(body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
      >>> jax.jit(send)(jnp.arange(1, 5))
      Array([0, 0, 0, 1], dtype=int32)
    """
    axes = _axis.axes_of("precv", axis_name)
    sources = sources_of("precv", axes, perm)
    if not isinstance(token, SendToken):
        raise TypeError(f"jax_cxl.precv takes the token of a jax_cxl.psend, got {type(token)}.")
    if (token.axes, token.sources) != (axes, sources):
        raise ValueError(
            f"jax_cxl.precv over {axes} with perm={perm} got the token of a psend over"
            f" {token.axes} that sends otherwise. Pass the axis and the pairs of the psend."
        )
    sent = token.value
    if sent.shape != tuple(out_shape.shape) or sent.dtype != out_shape.dtype:
        raise ValueError(
            f"jax_cxl.precv: out_shape is {out_shape}, but the psend sent"
            f" {sent.dtype}{list(sent.shape)}."
        )
    return sent
