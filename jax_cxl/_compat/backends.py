"""JAX's backends. `jax.extend.backend` has `names` too, but imports Pallas."""

from collections.abc import Iterable

from jax._src import xla_bridge as _xla_bridge

_xla_bridge.backends, _xla_bridge.backends_are_initialized  # noqa: B018


def names() -> Iterable[str]:
    """Returns the names of JAX's backends, which this call may create."""
    return _xla_bridge.backends()


def made() -> bool:
    """Returns whether JAX has made its devices. After that, JAX connects to no other process."""
    return _xla_bridge.backends_are_initialized()
