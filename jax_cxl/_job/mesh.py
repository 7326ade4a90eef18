"""Makes meshes of the devices of several hosts."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str],
    axis_types: tuple[jax.sharding.AxisType, ...] | None = None,
    *,
    devices: Sequence[Any] | None = None,
) -> jax.sharding.Mesh:
    """Makes a mesh as `jax.make_mesh` does, even if the devices belong to several hosts.

    JAX counts the devices of each Linux kernel as a slice of its own, and `jax.make_mesh` refuses
    devices of several slices. Where `jax.make_mesh` works, this function returns the same mesh.
    Otherwise its mesh has the devices in the order of `devices`, so that the last axis stays within
    a host as far as possible.

    Args:
      axis_shapes: number of devices along each axis. If their product is less than the number of
        devices, the first devices are used.
      axis_names: a name for each axis.
      axis_types: a `jax.sharding.AxisType` for each axis, by default that of `jax.make_mesh`.
      devices: the devices, by default `jax.devices()`.

    Raises:
      ValueError: there are too few devices, or names and types do not fit the axes.

    Example:
      >>> mesh = jax_cxl.make_mesh((jax.device_count(),), ("i",))
    """
    available = list(jax.devices() if devices is None else devices)
    shape = tuple(axis_shapes)
    chosen = available[: math.prod(shape)]
    if len({getattr(device, "slice_index", 0) for device in chosen}) <= 1:
        return jax.make_mesh(shape, axis_names, axis_types, devices=available)
    if len(chosen) < math.prod(shape):
        raise ValueError(
            f"a mesh of shape {shape} needs {math.prod(shape)} devices, but there are"
            f" {len(chosen)}: make it smaller, or start more processes"
        )
    # For one device jax.make_mesh works on every host. It checks the names and types, and supplies
    # the default types.
    one = jax.make_mesh((1,) * len(shape), axis_names, axis_types, devices=chosen[:1])
    grid = np.asarray(chosen, dtype=object).reshape(shape)
    return jax.sharding.Mesh(grid, one.axis_names, axis_types=one.axis_types)
