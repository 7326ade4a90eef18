"""Finds the ranks of a collective from its mesh axes."""

from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jax_cxl._job import lifecycle, platforms
from jax_cxl._job.launched import environment
from jax_cxl._lowering.primitives import named_axis


def of_groups(ctx: Any, name: str, axes: named_axis.Axes, groups: named_axis.Groups) -> np.ndarray:
    """Returns the groups of a collective as ranks in the world, a group in each row."""
    axis_context = ctx.module_context.axis_context
    if not isinstance(axis_context, mlir.SPMDAxisContext):
        raise NotImplementedError(
            f"jax_cxl.{name} must be called under jax.shard_map, got {axis_context}."
        )
    mesh = axis_context.mesh
    positions = [mesh.axis_names.index(axis) for axis in axes]
    partitions = np.arange(mesh.size).reshape(mesh.axis_sizes)
    n = int(np.prod([mesh.axis_sizes[p] for p in positions]))
    rows = np.moveaxis(partitions, positions, range(len(positions))).reshape(n, -1).T
    if groups is not None:
        rows = np.concatenate([rows[:, list(group)] for group in groups])
    if rows.shape[1] == 1:
        environment.warn_if_alone()
        return rows  # Nothing to communicate, so no pool is needed.
    if isinstance(mesh, jax.sharding.AbstractMesh):
        raise NotImplementedError(
            f"jax_cxl.{name} must know the devices of the mesh, but this is an"
            " AbstractMesh. Pass the mesh to jax.shard_map, or make it current with"
            " jax.set_mesh(mesh)."
        )
    runtime = lifecycle.ensure_started()
    rank_of_device = runtime.rank_of_device
    platform = platforms.of(mesh.devices.flat[0])
    if platform is not runtime.platform:
        raise ValueError(
            f"jax_cxl.{name}: the mesh {mesh.axis_names} has {platform.name} devices, but the ranks"
            f" are the {runtime.platform.name} devices of JAX's default backend. Change it with"
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


def processes(ctx: Any) -> dict[int, int]:
    """Returns the process of each rank of the mesh. Call it after `of_groups` has found groups."""
    rank_of_device = lifecycle.ensure_started().rank_of_device
    mesh = ctx.module_context.axis_context.mesh
    return {rank_of_device[device.id]: device.process_index for device in mesh.devices.flat}
