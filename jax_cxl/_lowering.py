"""Lowering of the collectives to XLA custom calls.

Every collective but the barrier is one call of the target `jax_cxl_collective` with
one operand and one result, described by attributes. The attribute `groups` lists the
ranks, in the pool's world, of all groups one after another, `group_size` ranks each.

Blocks must be contiguous in memory, one a rank. A collective along another dimension
than the first therefore asks XLA for a layout with this dimension outermost: the
transposition happens in XLA, which fuses it into its neighbours where it can.
"""

import enum
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import mlir

from jax_cxl import _axis, _programs

COLLECTIVE_TARGET = "jax_cxl_collective"
BARRIER_TARGET = "jax_cxl_barrier"
PLATFORMS = ("cpu",)


class Op(enum.IntEnum):
    """jax_cxl::plan::Op (cc/plan/plan.h)."""

    BARRIER = 0
    ALL_GATHER = 1
    ALL_REDUCE = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    PERMUTE = 9


class ReduceOp(enum.IntEnum):
    """jax_cxl::ReduceOp (cc/base/dtype.h)."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3


def register(primitive: Any, rule: Any) -> None:
    """Registers a lowering rule for every platform that has a handler.

    It is not cacheable: two equal calls are two collectives, each with its own `site`.
    """
    for platform in PLATFORMS:
        mlir.register_lowering(primitive, rule, platform=platform, cacheable=False)


def collective(
    ctx: mlir.LoweringRuleContext,
    x: Any,
    *,
    name: str,
    op: Op,
    axes: _axis.Axes,
    groups: _axis.Groups = None,
    reduce_op: ReduceOp = ReduceOp.SUM,
    operand_blocks: int | None = None,
    result_blocks: int | None = None,
    root: int = 0,
    sources: tuple[int, ...] = (),
) -> Sequence:
    """Lowers a collective with one operand and one result.

    Args:
      ctx: context of the lowering rule.
      x: the operand.
      name: name of the public function, for messages of the handler.
      op: which collective.
      axes: axis names over which it runs.
      groups: axis index groups, or None for one group along `axes`.
      reduce_op: reduction, where the collective has one.
      operand_blocks: dimension of the operand that counts the ranks' blocks, if any.
      result_blocks: the same of the result.
      root: rank in the group, for collectives with a root.
      sources: for permutations, from which rank in the group each receives, or -1.

    Returns:
      The result, as lowering rules return it.
    """
    aval_in: Any = ctx.avals_in[0]
    aval_out: Any = ctx.avals_out[0]
    ranks = _world_ranks(ctx, name, axes, groups)
    n = ranks.shape[1]
    if aval_out.size == 0 or (op is Op.PERMUTE and all(s < 0 for s in sources)):
        return _local(ctx, lambda v: lax.full(aval_out.shape, 0, aval_out.dtype), x)
    if n == 1:
        return _local(ctx, lambda v: lax.reshape(v, aval_out.shape), x)
    call = jax.ffi.ffi_lowering(
        COLLECTIVE_TARGET,
        operand_layouts=[_layout(aval_in.ndim, operand_blocks)],
        result_layouts=[_layout(aval_out.ndim, result_blocks)],
    )
    return call(
        ctx,
        x,
        **_attributes(
            ctx,
            name,
            op,
            ranks,
            reduce_op=reduce_op,
            dtype=_axis.DTYPES.index(str(aval_in.dtype)),
            count=aval_in.size // (1 if operand_blocks is None else n),
            root=root,
            sources=sources,
        ),
    )


def barrier(ctx: mlir.LoweringRuleContext, *operands: Any, name: str, axes: _axis.Axes) -> Sequence:
    """Lowers a barrier, which passes its operands through."""
    ranks = _world_ranks(ctx, name, axes, None)
    if ranks.shape[1] == 1:
        return list(operands)
    call = jax.ffi.ffi_lowering(
        BARRIER_TARGET,
        operand_output_aliases={i: i for i in range(len(operands))},
        has_side_effect=True,
    )
    return call(ctx, *operands, **_attributes(ctx, name, Op.BARRIER, ranks))


def _attributes(
    ctx,
    name,
    op,
    ranks,
    *,
    reduce_op=ReduceOp.SUM,
    dtype=0,
    count=0,
    root=0,
    sources=(),
) -> dict[str, Any]:
    return {
        "name": name,
        "op": np.int32(op),
        "reduce_op": np.int32(reduce_op),
        "dtype": np.int32(dtype),
        "count": np.int64(count),
        "root": np.int32(root),
        "group_size": np.int32(ranks.shape[1]),
        "groups": np.ascontiguousarray(ranks.reshape(-1), np.int32),
        "sources": np.asarray(sources, np.int32),
        "program": _programs.name(ctx.module_context.module),
        # Channels count up over the whole module, whatever function a call stands in,
        # so that ranks which lower the same module agree on the site of each call.
        "site": np.int32(ctx.module_context.new_channel()),
    }


def _world_ranks(ctx, name: str, axes: _axis.Axes, groups: _axis.Groups) -> np.ndarray:
    """Returns the groups of the collective, one a row, as ranks in the pool's world."""
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

    rank_of_device = _runtime.ensure_started().rank_of_device
    try:
        world = np.array([rank_of_device[device.id] for device in mesh.devices.flat])
    except KeyError as error:
        raise ValueError(
            f"jax_cxl.{name}: device {error.args[0]} of the mesh {mesh.axis_names} is"
            f" not in the pool's world, which has the devices {sorted(rank_of_device)}."
        ) from None
    return world[rows]


def _layout(ndim: int, blocks: int | None) -> tuple[int, ...]:
    """Returns the layout, minor to major, with dimension `blocks` outermost."""
    order = list(range(ndim))
    if blocks is not None:
        order.remove(blocks)
        order.insert(0, blocks)
    return tuple(reversed(order))


def _local(ctx, function, x) -> Sequence:
    return mlir.lower_fun(function, multiple_results=False)(ctx, x)
