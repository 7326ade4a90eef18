"""The constructor of arrays, their layouts, and the parts of arrays on devices."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import pxla as _pxla

_pxla.batched_device_put  # noqa: B018


def like(array: jax.Array, weak_type: bool, committed: bool) -> jax.Array:
    """Returns an array with the same buffers that is weakly typed, or not committed to its device.

    Args:
      array: JAX array, not of keys.
      weak_type: whether JAX promotes it like a Python number.
      committed: whether JAX keeps it on its devices.
    """
    held: Any = array
    if (held.weak_type, held.committed) == (weak_type, committed):
        return array
    # An array on one device is its own shard.
    one = len(held.sharding.device_set) == 1 and held.is_fully_addressable
    shards = [held] if one else [shard.data for shard in held.addressable_shards]
    aval = held.aval if held.weak_type == weak_type else held.aval.update(weak_type=weak_type)
    made: jax.Array = type(held)(
        aval, held.sharding, shards, committed=committed, _skip_checks=True
    )
    return made


def of_devices(array: jax.Array) -> Sequence[jax.Array]:
    """Returns the parts of an array on this process's devices, in the order of
    `addressable_shards`, which also describes them and takes twice as long.
    """
    held: Any = array
    parts: Sequence[jax.Array] = held._arrays
    return parts


def layout_of(array: jax.Array) -> Any:
    """Returns the layout of an array. `array.format` takes five times as long."""
    held: Any = array
    return held._pjrt_layout


def put(
    aval: Any,
    sharding: jax.sharding.Sharding,
    parts: Sequence[np.ndarray],
    devices: Sequence[jax.Device],
    committed: bool,
) -> jax.Array:
    """Puts an array on devices. `jax.device_put` takes five times as long for a small array.

    Args:
      aval: its abstract value.
      sharding: its sharding.
      parts: the parts for the devices of this process, whose dtype JAX has. They do not change
        afterwards: on CPUs the result may use their memory.
      devices: these devices.
      committed: whether JAX keeps the array on its devices.
    """
    made: jax.Array = _pxla.batched_device_put(aval, sharding, parts, devices, committed)
    return made
