"""Lowering of the collectives that have levels: they run in levels, or as one call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters import mlir

from jax_cxl import _compat
from jax_cxl._lowering.contract import Op, ReduceOp
from jax_cxl._lowering.levels import compose, split, table
from jax_cxl._lowering.levels.between_devices import BetweenDevices, moves
from jax_cxl._lowering.primitives import local_lowering, lowering, named_axis, rank_groups
from jax_cxl._lowering.start_done import halves


def collective(
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

    Between CPU devices a collective in levels is one call (cc/comm/level_calls.h). Between GPUs it
    is a composition (compose.py). The start of a composition returns a complete result, because
    a future can hold only a single call.
    """
    aval_in: Any = ctx.avals_in[0]
    aval_out: Any = ctx.avals_out[0]
    one_call = _is_one_call(ctx)
    movable = one_call or moves(aval_in.dtype)
    # Between GPUs, choose no levels for two kinds of calls: starts, which would wait for the whole
    # collective, and calls with a dtype that XLA does not move.
    if levels is None and (len(ctx.avals_out) > 1 or not movable):
        levels = False
    ranks = rank_groups.of_groups(ctx, name, axes, groups)
    found = None
    if levels is not False and ranks.shape[1] > 1 and aval_out.size > 0:
        found = split.of(ranks, rank_groups.processes(ctx))
        num_bytes = max(aval.size * aval.dtype.itemsize for aval in (aval_in, aval_out))
        if levels and found is None:
            raise ValueError(
                f"jax_cxl.{name}: levels=True needs groups with the same number of ranks, at least"
                " two, in each process, and all groups must be spread over the processes in the"
                f" same way. The groups are {ranks.tolist()}. Change them, or leave `levels` out."
            )
        if levels is None and not table.pays(op, num_bytes, found, on_gpus=not one_call):
            found = None
    description = {"name": name, "op": op, **description}
    if found is None or one_call:
        grid = None if found is None else found.at
        return lowering.between(ctx, x, ranks=ranks, grid=grid, **description)
    if not movable:
        raise ValueError(
            f"jax_cxl.{name}: levels=True between GPUs does not work with {aval_in.dtype.name},"
            " because XLA's collectives between GPUs do not move it. Leave `levels` out."
        )
    return _compose(ctx, x, found, axes, groups, **description)


def _is_one_call(ctx: Any) -> bool:
    return ctx.module_context.platforms == ("cpu",)


def _compose(
    ctx: Any,
    x: Any,
    found: split.Split,
    axes: named_axis.Axes,
    groups: named_axis.Groups,
    *,
    name: str,
    op: Op,
    reduce_op: ReduceOp,
    operand_blocks: int | None = None,
    result_blocks: int | None = None,
    root: int = 0,
) -> Sequence:
    (aval,) = ctx.avals_in
    inside = BetweenDevices(axes, found.at, groups, reduce_op)
    across = _Across(tuple(map(tuple, found.across.tolist())), name, reduce_op)
    levels = compose.Levels(found, inside, across)
    operand_bytes = aval.size * aval.dtype.itemsize
    num_chunks = table.chunks(op, operand_bytes, found.at.shape, table.CHUNK_BYTES)

    def body(v):
        if operand_blocks is not None:
            v = jax.numpy.moveaxis(v, operand_blocks, 0)
        v = levels.run(op, v, root, num_chunks)
        return v if result_blocks is None else jax.numpy.moveaxis(v, 0, result_blocks)

    # The steps need no varying types: the types of the collective were checked when it was traced.
    inner = ctx.replace(avals_in=[jax.core.ShapedArray(aval.shape, aval.dtype)])
    return local_lowering.local(inner, body, x)


# The primitive of the step between processes, for collectives in levels between GPUs.
_step_p = _compat.tracing.Primitive("level")


class _Across(NamedTuple):
    """Runs or starts the steps between processes, each a collective in the groups `ranks`."""

    ranks: tuple[tuple[int, ...], ...]
    name: str
    reduce_op: ReduceOp

    def run(self, op: Op, x: Any, root: int) -> Any:
        return _step_p.bind(x, op=op, root=root, **self._asdict())

    def start(self, op: Op, x: Any, root: int) -> "_Started":
        params = {"op": op, "root": root, **self._asdict()}
        return _Started(x, *halves.start_p.bind(x, collective=_step_p, **params))


class _Started(NamedTuple):
    """A started step between processes: its operand, its unfinished result, its token."""

    x: Any
    y: Any
    token: Any

    def tie(self, x: Any) -> Any:
        return halves.tie(self.token, x)

    def done(self, after: Any) -> Any:
        return halves.done((self.x,), self.y, self.token, after)


@_step_p.def_abstract_eval
def _step_abstract_eval(x, *, op, ranks, **_):
    shape = x.shape[1:] if op.operand_blocks else x.shape
    return x.update(shape=(len(ranks[0]), *shape) if op.result_blocks else shape)


def _lower_step(ctx, x, *, op, ranks, **params):
    return lowering.between(
        ctx,
        x,
        op=op,
        ranks=np.array(ranks),
        # While this step runs, the program computes nothing else: only steps of other chunks run.
        alone=True,
        operand_blocks=0 if op.operand_blocks else None,
        result_blocks=0 if op.result_blocks else None,
        **params,
    )


lowering.register(_step_p, _lower_step)
