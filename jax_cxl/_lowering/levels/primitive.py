"""Makes the primitives of collectives with one operand and one result."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import batching, mlir

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._lowering.levels import choice
from jax_cxl._lowering.primitives import (
    dtypes,
    lowering,
    named_axis,
    rank_groups,
)

_REDUCE = {
    ReduceOp.SUM: lax.reduce_sum,
    ReduceOp.MIN: lax.reduce_min,
    ReduceOp.MAX: lax.reduce_max,
    ReduceOp.AND: lax.reduce_and,
    ReduceOp.OR: lax.reduce_or,
}


def make(
    name: str,
    op: Op,
    reduce_op: ReduceOp = ReduceOp.SUM,
    *,
    primitive_name: str | None = None,
    over_vmapped: Callable | None = None,
) -> Any:
    """Makes the primitive of a collective, with all rules except its transpose.

    Over an axis of vmap, the primitive does not check the dtype of a reduction, so the public
    function has to check it.

    The primitive has the parameter `axes`, and those of `_lower` that the collective needs. It
    removes the dimension `operand_blocks`, which counts ranks, and then inserts the dimension
    `result_blocks`, which counts `size` ranks. An `invariant` result is equal on all ranks, so that
    it does not vary over `axes`.

    `over_vmapped(x, d, **params)` is called if `axes` is an axis of vmap. Dimension d of x has the
    values of all ranks. It returns the result and its batch dimension. None takes the function of
    `op` in `_MOVES`.
    """
    primitive: Any = _compat.tracing.Primitive(primitive_name or name)

    def abstract_eval(
        x, *, axes, operand_blocks=None, result_blocks=None, size=None, invariant=False, **params
    ):
        if op.reduces:
            dtypes.check_reduction(name, params.get("reduce_op", reduce_op), x.dtype)
        shape = list(x.shape)
        if operand_blocks is not None:
            del shape[operand_blocks]
        if result_blocks is not None:
            shape.insert(result_blocks, size)
        strong = op is Op.ALL_TO_ALL or drops_weak_types()
        return named_axis.abstract_result(
            name, x, axes, shape=shape, invariant=invariant, strong=strong
        )

    def drops_weak_types():
        # The reductions of jax.lax keep weak types under check_vma only.
        return op is Op.ALL_REDUCE and not _compat.tracing.check_vma()

    def lower(ctx, x, *, size=None, invariant=False, **params):
        return _lower(ctx, x, name=name, op=op, **{"reduce_op": reduce_op, **params})

    def batch(axis_data, operands, dims, *, axes, **params):
        (x,), (d,) = operands, dims
        if axis_data.name not in axes:
            return _batched(primitive, x, d, axes=axes, **params)
        groups = params.get("groups")
        named_axis.check_vmapped(name, axis_data.name, axes, groups, others=op is Op.ALL_REDUCE)
        if op in (Op.ALL_REDUCE, Op.REDUCE, Op.REDUCE_SCATTER):
            reduced = _reduced(reduce_op, x, d, axis_data.size)
            if drops_weak_types() and reduced is not x:
                reduced = lax.convert_element_type(reduced, x.dtype)
            x, d = reduced, params.get("operand_blocks")
        else:
            if d is None:
                x, d = lax.broadcast(x, (axis_data.size,)), 0
            run = over_vmapped or _MOVES[op]
            x, d = run(x, d, **params)
        rest = tuple(axis for axis in axes if axis != axis_data.name)
        return (primitive.bind(x, axes=rest, **params) if rest else x), d

    primitive.reduce_op = reduce_op
    primitive.def_effectful_abstract_eval(abstract_eval)
    lowering.register(primitive, lower)
    batching.fancy_primitive_batchers[primitive] = batch
    return primitive


def _lower(
    ctx: mlir.LoweringRuleContext,
    x: Any,
    *,
    name: str,
    op: Op,
    axes: named_axis.Axes,
    groups: named_axis.Groups = None,
    levels: bool | None = False,
    **description: Any,
) -> Sequence:
    """Lowers a collective over mesh axes, in levels if `levels` is True or if that is faster.

    A collective in levels is one call too (cc/comm/level_calls.h). GPUs have no levels.
    """
    ranks = rank_groups.of_groups(ctx, name, axes, groups)
    on_cpus = ctx.module_context.platforms == ("cpu",)
    if levels and not on_cpus and ranks.shape[1] > 1:
        raise ValueError(
            f"jax_cxl.{name}: levels=True works between CPU devices only. Between GPUs leave"
            " `levels` out. To combine the arrays of a process before they go through the pool, use"
            " jax.lax over an axis of its GPUs first (docs/levels.md)."
        )
    aval_in: Any = ctx.avals_in[0]
    aval_out: Any = ctx.avals_out[0]
    grid = None
    if on_cpus and levels is not False and ranks.shape[1] > 1 and aval_out.size > 0:
        grid = choice.grid(ranks, rank_groups.processes(ctx))
        num_bytes = max(aval.size * aval.dtype.itemsize for aval in (aval_in, aval_out))
        if levels and grid is None:
            raise ValueError(
                f"jax_cxl.{name}: levels=True needs groups with the same number of ranks, at least"
                " two, in each process, and all groups must be spread over the processes in the"
                f" same way. The groups are {ranks.tolist()}. Change them, or leave `levels` out."
            )
        if levels is None and not choice.pays(op, num_bytes, grid):
            grid = None
    return lowering.between(ctx, x, name=name, op=op, ranks=ranks, grid=grid, **description)


def _batched(primitive, x, d, **params):
    """Binds a primitive to an array whose batch dimension does not count ranks."""
    if d is not None:
        blocks = params.get("operand_blocks")
        if blocks is not None:
            params["operand_blocks"] = blocks + (d <= blocks)
            d -= d > blocks
        blocks = params.get("result_blocks")
        if blocks is not None:
            params["result_blocks"] = blocks + (d <= blocks)
            d += d > blocks
    return primitive.bind(x, **params), d


def _reduced(reduce_op, x, d, size):
    if d is None:
        return lax.mul(x, lax.full_like(x, size)) if reduce_op is ReduceOp.SUM else x
    wide = dtypes.accumulator(x.dtype)
    if str(wide) in dtypes.PACKED_DTYPES:
        wide = np.dtype(np.int8)  # XLA has no bitwise reductions of narrower integers.
    if wide == x.dtype:
        return _REDUCE[reduce_op](x, (d,))
    return _REDUCE[reduce_op](x.astype(wide), (d,)).astype(x.dtype)


def _gather(x, d, *, result_blocks, **_):
    return jnp.moveaxis(x, d, result_blocks), None


def _take_of_root(x, d, *, root, operand_blocks=None, **_):
    return lax.index_in_dim(x, root, d, keepdims=False), operand_blocks


def _all_to_all(x, d, *, operand_blocks, result_blocks, **_):
    # The blocks count the receiving ranks, and the batch dimension the sending ranks.
    blocks = operand_blocks + (d <= operand_blocks)
    return jnp.moveaxis(x, (blocks, d), (0, result_blocks + 1)), 0


def _permute(x, d, *, sources, **_):
    index = np.array(sources)
    receives = np.expand_dims(index >= 0, [i for i in range(x.ndim) if i != d])
    return jnp.where(receives, jnp.take(x, np.maximum(index, 0), d), jnp.zeros_like(x)), d


# For each collective that only moves elements: the function that computes it over an axis of vmap.
_MOVES: dict[Op, Callable] = {
    Op.ALL_GATHER: _gather,
    Op.GATHER: _gather,
    Op.BROADCAST: _take_of_root,
    Op.SCATTER: _take_of_root,
    Op.ALL_TO_ALL: _all_to_all,
    Op.PERMUTE: _permute,
}
