"""Which ranks take part in a collective: from mesh axes to the pool's world."""

from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jax_cxl import _axis, _platform


def of_groups(ctx: Any, name: str, axes: _axis.Axes, groups: _axis.Groups) -> np.ndarray:
    """Returns the groups of a collective, one a row, as ranks in the pool's world.

    Args:
      ctx: context of the lowering rule.
      name: name of the public function, for messages.
      axes: axis names over which it runs.
      groups: axis index groups, or None for one group along `axes`.

    Raises:
      NotImplementedError, ValueError: the mesh is not one that we can communicate over.
    """
    axis_context = ctx.module_context.axis_context
    if not isinstance(axis_context, mlir.SPMDAxisContext):
        raise NotImplementedError(
            f"jax_cxl.{name} must be called under jax.shard_map, got {axis_context}."
        )
    mesh = axis_context.mesh
    auto = [
        axis
        for axis in mesh.axis_names
        if axis not in axis_context.manual_axes and mesh.shape[axis] > 1
    ]
    if auto:
        raise NotImplementedError(
            f"jax_cxl.{name}: all axes of the mesh must be manual, but {auto} are not."
            " Leave `axis_names` out of jax.shard_map, or run this collective in a"
            " jax.shard_map over a mesh without these axes."
        )
    positions = [mesh.axis_names.index(axis) for axis in axes]
    partitions = np.arange(mesh.size).reshape(mesh.axis_sizes)
    n = int(np.prod([mesh.axis_sizes[p] for p in positions]))
    rows = np.moveaxis(partitions, positions, range(len(positions))).reshape(n, -1).T
    if groups is not None and len({len(group) for group in groups}) > 1:
        raise NotImplementedError(
            f"jax_cxl.{name}: axis_index_groups must all have the same size, got {groups}."
        )
    if groups is not None:
        rows = np.concatenate([rows[:, list(group)] for group in groups])
    if rows.shape[1] == 1:
        return rows  # Nothing to communicate: the pool need not be there.
    if isinstance(mesh, jax.sharding.AbstractMesh):
        raise NotImplementedError(
            f"jax_cxl.{name} must know the devices of the mesh, but this is an"
            " AbstractMesh. Pass the mesh to jax.shard_map, or make it current with"
            " jax.set_mesh(mesh)."
        )
    from jax_cxl import _runtime  # Here and not above: it starts the pool on first use.

    runtime = _runtime.ensure_started()
    rank_of_device = runtime.rank_of_device
    platform = _platform.of(mesh.devices.flat[0])
    if platform is not runtime.platform:
        raise ValueError(
            f"jax_cxl.{name}: the mesh {mesh.axis_names} has {platform.name} devices, but the ranks"
            f" are the {runtime.platform.name} devices of JAX's default backend. Choose it by"
            f" JAX_PLATFORMS={platform.name}."
        )
    try:
        world = np.array([rank_of_device[device.id] for device in mesh.devices.flat])
    except KeyError as error:
        raise ValueError(
            f"jax_cxl.{name}: device {error.args[0]} of the mesh {mesh.axis_names} is"
            f" not in the pool's world, which has the devices {sorted(rank_of_device)}. After"
            " jax_cxl.regroup(), make a mesh of the devices that it returned."
        ) from None
    return world[rows]


def group_size(ctx: Any, axes: _axis.Axes, groups: _axis.Groups) -> int:
    """Returns the number of ranks in a group; 1 outside `jax.shard_map`."""
    if groups is not None:
        return len(groups[0])
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    return int(np.prod([mesh.shape[axis] for axis in axes])) if mesh is not None else 1
