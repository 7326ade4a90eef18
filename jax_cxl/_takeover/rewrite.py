"""Replaces a collective of XLA by calls of jax_cxl."""

import dataclasses
import functools
from typing import Any

import numpy as np

from jax_cxl._lowering import contract
from jax_cxl._lowering.contract import DTYPES, Op, ReduceOp
from jax_cxl._lowering.levels import split, table
from jax_cxl._lowering.primitives import carriers
from jax_cxl._takeover.build import Builder, Value
from jax_cxl._takeover.config import Config
from jax_cxl._takeover.hlo.module import Computation, Instruction, Module
from jax_cxl._takeover.hlo.shape import Shape
from jax_cxl._takeover.match import Collective, NotTakenError
from jax_cxl._takeover.pairs import PairBuilder
from jax_cxl._takeover.world import World

# Names of the functions of jax.lax, for messages.
_NAMES = {
    Op.ALL_REDUCE: "psum",
    Op.ALL_GATHER: "all_gather",
    Op.REDUCE_SCATTER: "psum_scatter",
    Op.ALL_TO_ALL: "all_to_all",
    Op.RAGGED_ALL_TO_ALL: "ragged_all_to_all",
    Op.PERMUTE: "ppermute",
    Op.BROADCAST: "pbroadcast",
}
_REDUCTIONS = {
    ReduceOp.MIN: "pmin",
    ReduceOp.MAX: "pmax",
    ReduceOp.PROD: "pprod",
    ReduceOp.AND: "pand",
    ReduceOp.OR: "por",
}


@dataclasses.dataclass(frozen=True)
class _Context:
    builder: Builder
    collective: Collective
    world: World
    program: str
    line: str
    # Whether each call that has been made runs in levels.
    in_levels: list[bool] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The function of jax.lax that does the same."""
        if self.collective.op is Op.ALL_REDUCE:
            return _REDUCTIONS.get(self.collective.reduce_op, "psum")
        return _NAMES[self.collective.op]

    @functools.cached_property
    def ranks(self) -> np.ndarray:
        """The ranks of each group, one group in each row."""
        groups = self.collective.groups
        try:
            return np.array([[self.world.rank_of[d] for d in group] for group in groups])
        except KeyError as error:
            raise NotTakenError(f"device {error.args[0]} is not one of the ranks") from None

    def config(
        self,
        dtype: str,
        count: int,
        rows: tuple[int, ...] = (),
        grid: np.ndarray | None = None,
    ) -> str:
        """Returns the attributes of a call for blocks of `count` elements.

        Args:
          dtype: of the elements.
          count: elements of a block.
          rows: for the ragged all-to-all.
          grid: for a call in levels (`contract.attributes`).
        """
        self.in_levels.append(grid is not None)
        attributes = contract.attributes(
            self.name,
            self.collective.op,
            self.ranks,
            grid=grid,
            reduce_op=self.collective.reduce_op,
            dtype=DTYPES.index(dtype),
            count=count,
            sources=self.collective.sources,
            rows=rows,
            generation=self.world.generation,
            program=self.program,
        )
        return Config.of(attributes, self.line).text


def rewrite(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    collective: Collective,
    world: World,
    starts: bool,
) -> bool:
    """Replaces a collective by calls of jax_cxl.

    Args:
      module: the module.
      computation: the computation that contains the collective.
      instruction: the collective, or its start.
      collective: its translation (match.py).
      world: the devices of the job.
      starts: whether the instruction only starts the collective.

    Returns:
      Whether any of the calls runs in levels.

    Raises:
      NotTakenError: the pool has no collective that does the same. Nothing has been changed.
    """
    builder = (PairBuilder if starts else Builder)(computation, instruction)
    line = module.source_line(instruction)
    context = _Context(builder, collective, world, module.name, line)
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
    return any(context.in_levels)


def _one(context: _Context, operand: Value, result: Shape) -> Value:
    """Replaces a collective of one array, whose blocks are contiguous in memory."""
    builder, collective = context.builder, context.collective
    op, dimension = collective.op, collective.dimension
    operand_shape, result_shape = operand.shape, result
    if dimension is not None and (op.operand_blocks or op.result_blocks):
        operand_shape = operand_shape.with_outermost(dimension)
        result_shape = result_shape.with_outermost(dimension)
    # Operand and result have the dimensions in the same order, so that blocks are equal.
    order = (result_shape if op is Op.REDUCE_SCATTER else operand_shape).minor_to_major
    operand_shape = operand_shape._replace(minor_to_major=order)
    result_shape = result_shape._replace(minor_to_major=order)
    dtype = operand_shape.dtype
    carrier = carriers.of(dtype, op, collective.reduce_op)
    if collective.reduce_op in (ReduceOp.MIN, ReduceOp.MAX) and dtype.startswith("complex"):
        raise NotTakenError("complex numbers have no order")
    if dtype == "float4_e2m1fn" and carrier == "uint8":
        raise NotTakenError("float4 values are packed two to a byte")
    value = builder.convert(builder.copy(operand, operand_shape), carrier)
    blocks = len(collective.groups[0]) if op.operand_blocks else 1
    num_bytes = max(value.shape.size, result_shape.size) * np.dtype(carrier).itemsize
    config = context.config(carrier, operand_shape.size // blocks, grid=_grid(context, num_bytes))
    target = contract.COLLECTIVE_TARGET
    called = builder.call(target, result_shape.of(carrier), [value], config, None)
    return builder.convert(called, dtype)


def _grid(context: _Context, num_bytes: int) -> np.ndarray | None:
    """Returns how a collective's ranks are spread over processes, None if it runs without levels.

    Args:
      context: the collective.
      num_bytes: bytes of a rank's operand or of its result, whichever is larger.
    """
    world, op = context.world, context.collective.op
    if op not in table.OPS or world.levels is False:
        return None
    process_of = {rank: world.process_of[device] for device, rank in world.rank_of.items()}
    found = split.of(context.ranks, process_of)
    if world.levels is None:
        pays = table.pays(op, num_bytes, found, on_gpus=False)
        return found.at if found is not None and pays else None
    return None if found is None or found.processes == 1 else found.at


def _exchange(context: _Context, operands: list[Value]) -> list[Value]:
    """Replaces an all-to-all whose operands and result parts are each one rank's block."""
    builder = context.builder
    shape, n = operands[0].shape, len(operands)
    carrier = carriers.of(shape.dtype, Op.ALL_TO_ALL, ReduceOp.SUM)
    if shape.dtype == "float4_e2m1fn":
        raise NotTakenError("float4 values are packed two to a byte")
    rows = [
        builder.bitcast(
            builder.convert(builder.copy(operand, shape), carrier), shape.of(carrier).stacked(1)
        )
        for operand in operands
    ]
    stacked = builder.concatenate(rows)
    num_bytes = stacked.shape.size * np.dtype(carrier).itemsize
    config = context.config(carrier, shape.size, grid=_grid(context, num_bytes))
    called = builder.call(contract.COLLECTIVE_TARGET, stacked.shape, [stacked], config, None)
    return [builder.convert(builder.row(called, i), shape.dtype) for i in range(n)]


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
    counts: Any = (
        rows.shape.dimensions[0],
        output.shape.dimensions[0],
        columns[0].shape.size // n,
        1,  # element of a batch
    )
    config = context.config(rows.shape.dtype, rows.shape.size, counts)
    operands = [rows, output, table]
    if context.world.gpus:
        scratch = contract.row_scratch_bytes(n, *counts[:3])
        return builder.call_with_scratch(
            contract.ROWS_TARGET, output.shape, operands, config, 1, scratch
        )
    return builder.call(contract.ROWS_TARGET, output.shape, operands, config, 1)
