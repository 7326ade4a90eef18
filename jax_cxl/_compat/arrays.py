"""The constructor of arrays, and the parts of arrays on devices."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import pxla as _pxla

_pxla.batched_device_put  # noqa: B018


def like(array: Any, weak_type: bool, committed: bool) -> jax.Array:
    """Returns an array that shares the buffers of `array`, with this `weak_type` and `committed`.

    The array must not hold PRNG keys.
    """
    if (array.weak_type, array.committed) == (weak_type, committed):
        return array
    # An array on one device is its own shard.
    one = len(array.sharding.device_set) == 1 and array.is_fully_addressable
    shards = [array] if one else [shard.data for shard in array.addressable_shards]
    aval = array.aval if array.weak_type == weak_type else array.aval.update(weak_type=weak_type)
    return type(array)(aval, array.sharding, shards, committed=committed, _skip_checks=True)


def of_devices(array: Any) -> Sequence[jax.Array]:
    """Returns the parts of an array on this process's devices.

    They are in the order of `addressable_shards`, which takes twice as long, because it also
    describes the parts.
    """
    return array._arrays


def put(
    aval: Any,
    sharding: jax.sharding.Sharding,
    parts: Sequence[np.ndarray],
    devices: Sequence[jax.Device],
    committed: bool,
) -> jax.Array:
    """Puts an array on devices. `jax.device_put` takes five times as long for a small array.

    `parts` are the parts for `devices`, the devices of this process. They must not change
    afterwards, because on CPUs the result may use their memory.
    """
    return _pxla.batched_device_put(aval, sharding, parts, devices, committed)
