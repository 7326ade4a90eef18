"""Replaces a collective of XLA with calls of jax_cxl."""

import dataclasses
import functools
from typing import Any

import numpy as np

from jax_cxl._lowering import contract
from jax_cxl._lowering.contract import DTYPES, Op, ReduceOp
from jax_cxl._lowering.levels import choice
from jax_cxl._lowering.primitives import dtypes
from jax_cxl._takeover import config
from jax_cxl._takeover.build import Builder, Value
from jax_cxl._takeover.find import Found
from jax_cxl._takeover.hlo.module import Module
from jax_cxl._takeover.hlo.shape import Shape
from jax_cxl._takeover.match import Collective, NotTakenError
from jax_cxl._takeover.pairs import PairBuilder
from jax_cxl._takeover.world import World


@dataclasses.dataclass
class _Context:
    builder: Builder
    collective: Collective
    world: World
    program: str
    # Whether any of the calls runs in levels.
    in_levels: bool = False

    @property
    def name(self) -> str:
        """The function of jax.lax that does the same, for messages."""
        op = self.collective.op
        names = {
            Op.ALL_REDUCE: f"p{self.collective.reduce_op.name.lower()}",
            Op.REDUCE_SCATTER: "psum_scatter",
            Op.PERMUTE: "ppermute",
            Op.BROADCAST: "pbroadcast",
        }
        return names.get(op, op.name.lower())

    @functools.cached_property
    def ranks(self) -> np.ndarray:
        """The ranks of each group, one group in each row."""
        groups = self.collective.groups
        try:
            return np.array([[self.world.rank_of[d] for d in group] for group in groups])
        except KeyError as error:
            raise NotTakenError(f"device {error.args[0]} has no rank in this job") from None

    def call(self, value: Value, result: Shape, count: int) -> Value:
        """Appends a call that executes the collective on contiguous blocks of `count` elements."""
        dtype = value.shape.dtype
        num_bytes = max(value.shape.size, result.size) * np.dtype(dtype).itemsize
        grid = self._grid(num_bytes)
        self.in_levels |= grid is not None
        attributes = self.attributes(dtype, count, grid=grid)
        return self.builder.call(contract.COLLECTIVE_TARGET, [result], [value], attributes)

    def attributes(self, dtype: str, count: int, **options: Any) -> str:
        """Returns the attributes of a call for blocks of `count` elements."""
        attributes = contract.attributes(
            self.name,
            self.collective.op,
            self.ranks,
            reduce_op=self.collective.reduce_op,
            dtype=DTYPES.index(dtype),
            count=count,
            sources=self.collective.sources,
            generation=self.world.generation,
            program=self.program,
            **options,
        )
        return config.of(attributes)

    def _grid(self, num_bytes: int) -> np.ndarray | None:
        """Returns how the ranks are spread over processes, None if the call runs without levels."""
        world, op = self.world, self.collective.op
        if op not in choice.OPS or world.levels is False:
            return None
        process_of = {rank: world.process_of[device] for device, rank in world.rank_of.items()}
        grid = choice.grid(self.ranks, process_of)
        if grid is None or len(grid) == 1:
            return None
        return grid if world.levels or choice.pays(op, num_bytes, grid) else None


def rewrite(module: Module, found: Found, collective: Collective, world: World) -> bool:
    """Replaces a collective with calls of jax_cxl. Returns whether any of them runs in levels.

    If it raises NotTakenError, because the pool has no collective that does the same, nothing has
    been changed.
    """
    builder = (PairBuilder if found.starts else Builder)(found.computation, found.outer)
    context = _Context(builder, collective, world, module.name)
    operands, results = builder.operands(), builder.results()
    for shape in [*results, *(operand.shape for operand in operands)]:
        if not shape.regular:
            raise NotTakenError(f"the layout of one of its arrays is not known: {shape}")
        if shape.size == 0:
            raise NotTakenError("it moves no data")
    if collective.op is Op.RAGGED_ALL_TO_ALL:
        values = [_ragged(context, operands)]
    elif collective.op is Op.ALL_TO_ALL and collective.dimension is None:
        values = _exchange(context, operands)
    else:
        pairs = zip(operands, results, strict=True)
        values = [_one(context, operand, result) for operand, result in pairs]
    builder.finish(
        [builder.copy(value, shape) for value, shape in zip(values, results, strict=True)]
    )
    return context.in_levels


def _one(context: _Context, operand: Value, result: Shape) -> Value:
    """Replaces a collective of one array, whose blocks are contiguous in memory."""
    builder, collective = context.builder, context.collective
    op, dimension = collective.op, collective.dimension
    operand_shape, result_shape = operand.shape, result
    if dimension is not None and (op.operand_blocks or op.result_blocks):
        operand_shape = operand_shape.with_outermost(dimension)
        result_shape = result_shape.with_outermost(dimension)
    # Operand and result get the same order of dimensions, so that the elements of a block have the
    # same order in both.
    order = (result_shape if op is Op.REDUCE_SCATTER else operand_shape).minor_to_major
    operand_shape = operand_shape._replace(minor_to_major=order)
    result_shape = result_shape._replace(minor_to_major=order)
    dtype = operand_shape.dtype
    if collective.reduce_op in (ReduceOp.MIN, ReduceOp.MAX) and dtype.startswith("complex"):
        raise NotTakenError("complex numbers have no order")
    carrier = _carrier(dtype, collective)
    value = builder.convert(builder.copy(operand, operand_shape), carrier)
    blocks = len(collective.groups[0]) if op.operand_blocks else 1
    called = context.call(value, result_shape.of(carrier), operand_shape.size // blocks)
    return builder.convert(called, dtype)


def _exchange(context: _Context, operands: list[Value]) -> list[Value]:
    """Replaces an all-to-all that has an operand, and a part of the result, for each rank."""
    builder = context.builder
    shape, n = operands[0].shape, len(operands)
    carrier = _carrier(shape.dtype, context.collective)
    rows = [
        builder.bitcast(
            builder.convert(builder.copy(operand, shape), carrier), shape.of(carrier).stacked(1)
        )
        for operand in operands
    ]
    stacked = builder.concatenate(rows)
    called = context.call(stacked, stacked.shape, shape.size)
    return [builder.convert(builder.row(called, i), shape.dtype) for i in range(n)]


def _carrier(dtype: str, collective: Collective) -> str:
    carrier = dtypes.carrier(dtype, collective.op, collective.reduce_op)
    if dtype == "float4_e2m1fn" and carrier == "uint8":
        raise NotTakenError("float4 values are packed two to a byte")
    return carrier


def _ragged(context: _Context, operands: list[Value]) -> Value:
    """Replaces a ragged all-to-all. The four arrays of offsets and sizes become one table."""
    builder = context.builder
    rows, output, *columns = operands
    default = tuple(reversed(range(len(rows.shape.dimensions))))
    n = len(context.collective.groups[0])
    if rows.shape.dtype not in DTYPES:
        raise NotTakenError(f"{rows.shape.dtype} values are packed several to a byte")
    table = builder.concatenate([builder.bitcast(c, c.shape.stacked(1)) for c in columns])
    rows = builder.copy(rows, rows.shape._replace(minor_to_major=default))
    output = builder.copy(output, output.shape._replace(minor_to_major=default))
    counts = (rows.shape.dimensions[0], output.shape.dimensions[0], columns[0].shape.size // n)
    # The last entry of `rows` is the number of exchanges in one call. XLA's instruction has one.
    config = context.attributes(rows.shape.dtype, rows.shape.size, rows=(*counts, 1))
    results = [output.shape]
    if context.world.gpus:
        results.append(Shape("uint8", (contract.row_scratch_bytes(n, *counts),), (0,)))
    operands = [rows, output, table]
    return builder.call(contract.ROWS_TARGET, results, operands, config, aliases=1)
