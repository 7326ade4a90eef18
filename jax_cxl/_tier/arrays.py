"""Descriptions of arrays: name in the store, shape, dtype, and where they are on devices."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jax_cxl._store.trees import flatten, leaves


@dataclasses.dataclass(frozen=True)
class Spec:
    """An array.

    Attributes:
      committed: whether JAX has to keep it on these devices.
      weak_type: whether JAX promotes it like a Python number.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    sharding: jax.sharding.Sharding
    committed: bool
    weak_type: bool = False

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """A description with the sharding."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype, sharding=self.sharding)

    @property
    def stored_struct(self) -> jax.ShapeDtypeStruct:
        """A description of the array in the store. For typed keys, the store has the key data."""
        struct = self.struct
        return flatten.data_of_keys(struct)[1] if leaves.is_key(struct) else struct

    @property
    def like(self) -> jax.ShapeDtypeStruct:
        """A description for reads. It has no sharding if JAX may choose the device."""
        return jax.ShapeDtypeStruct(
            self.shape, self.dtype, sharding=self.wanted_sharding, weak_type=self.weak_type
        )

    @property
    def wanted_sharding(self) -> jax.sharding.Sharding | None:
        """The sharding for results of programs, None if JAX may choose the device."""
        return self.sharding if self.committed else None

    @property
    def bytes_per_device(self) -> int:
        size = math.prod(self.sharding.shard_shape(self.shape))
        return size * jax.dtypes.itemsize_bits(self.dtype) // 8


def spec_of(name: str, x: Any) -> Spec:
    """Describes a JAX array, or a `jax.ShapeDtypeStruct`."""
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            f"{name} is traced: call init, step, offload and fetch outside of jax.jit, because"
            " threads of the host move the data"
        )
    if not isinstance(x, jax.Array | jax.ShapeDtypeStruct):
        raise TypeError(f"{name} is of type {type(x).__name__}: it must be a JAX array")
    sharding = x.sharding
    committed = sharding is not None and bool(getattr(x, "committed", True))
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return Spec(name, tuple(x.shape), x.dtype, sharding, committed)


def replicated_like(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
    """Returns the sharding that gives each device of a sharding a whole copy of an array."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(sharding.mesh, jax.P())
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        return sharding
    held: Any = sharding.device_set
    devices = sorted(held, key=lambda device: int(device.id))
    return jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(devices), "all"), jax.P())


def named(prefix: str, tree: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a tree with their names in the store."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(f"['{prefix}']{jax.tree_util.keystr(path)}", x) for path, x in flat]


def check_one_set_of_devices(specs: Iterable[Spec]) -> None:
    """Raises ValueError if not all arrays are on the same devices."""
    first: Spec | None = None
    for spec in specs:
        first = first or spec
        if spec.sharding.device_set != first.sharding.device_set:
            raise ValueError(
                f"{first.name} and {spec.name} are on different devices, and an optimizer of"
                " jax_cxl.pooled needs all parameters on the same devices. Make an optimizer, with"
                " a name of its own, for each set of devices"
            )
