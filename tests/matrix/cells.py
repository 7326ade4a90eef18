"""Runs the cells of the matrix on this process's ranks, and returns a result for each cell."""

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import quick_compilation

from jax_cxl._lowering.primitives.dtypes import PACKED_DTYPES
from matrix import reference
from matrix.operations import OPERATIONS, RANKS, Operation
from matrix.transformations import TRANSFORMATIONS, Transformation, Values

OK = "ok"
WRONG = "wrong"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of the matrix, in one layout."""

    operation: Operation
    dtype: str
    transformation: Transformation
    check_vma: bool

    def key(self) -> dict[str, Any]:
        return {
            "operation": self.operation.name,
            "dtype": self.dtype,
            "transformation": self.transformation.name,
            "check_vma": self.check_vma,
        }


def all_cells() -> Iterator[Cell]:
    """Yields every operation x dtype x transformation.

    Each cell of float32 comes twice, with and without check_vma. Each cell of another dtype comes
    once. Half of those cells have check_vma.
    """
    product = itertools.product(
        enumerate(OPERATIONS), enumerate(reference.DTYPES), enumerate(TRANSFORMATIONS)
    )
    for (o, operation), (d, dtype), (t, transformation) in product:
        for check_vma in (True, False):
            if dtype == "float32" or (o + d + t) % 2 == check_vma:
                yield Cell(operation, dtype, transformation, check_vma)


def some_cells(sixths: Sequence[int]) -> Iterator[Cell]:
    """Yields some of the six parts of a selection of cells.

    Together the six parts contain each pair of operation and transformation, of operation and
    dtype, and of dtype and transformation.

    Args:
      sixths: numbers of the parts, from 0 to 5.
    """
    for cell in all_cells():
        o = OPERATIONS.index(cell.operation)
        d = reference.DTYPES.index(cell.dtype)
        t = TRANSFORMATIONS.index(cell.transformation)
        if cell.dtype == "float32":
            if (o + 2 * t) % 6 in sixths and (o + t) % 2 == cell.check_vma:
                yield cell
        elif (o + d) % 6 in sixths and t == (o + d // 3) % len(TRANSFORMATIONS):
            yield cell


def refusal(cell: Cell) -> str:
    """Returns a regular expression for the error of a cell that cannot work, else ""."""
    operation, dtype = cell.operation, reference.dtype_of(cell.dtype)
    own_axis = cell.transformation.name == "vmap, own axis"
    if operation.ordered and jnp.issubdtype(dtype, jnp.complexfloating):
        return "TypeError: .*complex numbers have no order"
    if operation.bitwise and jnp.issubdtype(dtype, jnp.inexact):
        return "TypeError: .*only bool and integers have 'and' and 'or'"
    if cell.transformation.derivative and not jnp.issubdtype(dtype, jnp.inexact):
        return "TypeError: (grad requires real- or complex-valued inputs|primal and tangent)"
    if cell.transformation.derivative and not operation.linear:
        return "NotImplementedError: (Differentiation rule for|.*has no derivative)"
    if operation.refuses == cell.dtype:
        return f"TypeError: .*does not support arrays of dtype {cell.dtype}"
    if operation.groups and own_axis:
        return "NotImplementedError: .*axis_index_groups do not work over the axis"
    if operation.name == "all_gather, to='invarying'" and own_axis and cell.check_vma:
        return "NotImplementedError: .*works over whole mesh axes only"
    return ""


def by_operation(cells: Iterable[Cell]) -> Iterator[list[Cell]]:
    """Yields lists of adjacent cells that have the same operation."""
    for _, batch in itertools.groupby(cells, lambda cell: cell.operation.name):
        yield list(batch)


def run(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Runs cells, in one program for each value of check_vma and each way to compile.

    Returns:
      The keys of the cells, each with its `result`: OK, or WRONG and how it differs, or the error
      that the user sees.
    """
    results: dict[Cell, str] = {}
    for check_vma, quickly in itertools.product((True, False), repeat=2):
        some = [c for c in cells if c.check_vma == check_vma and _compiles_quickly(c) == quickly]
        if some:
            names = ", ".join(dict.fromkeys(cell.operation.name for cell in some))
            logging.info("%s, check_vma=%s: %d cells", names, check_vma, len(some))
            found = _run_batch(some, check_vma, quick_compilation.OPTIONS if quickly else {})
            results.update((cell, found[i]) for i, cell in enumerate(some))
    return [{**cell.key(), "result": results[cell]} for cell in cells]


def _compiles_quickly(cell: Cell) -> bool:
    """Returns whether `quick_compilation` gives right results for a cell."""
    # With the options of `quick_compilation`, XLA rounds small normal numbers of float8_e5m2fnuz
    # wrongly if it copies them through float16: 3.8e-5 becomes 6.1e-5.
    wrong = (*PACKED_DTYPES, "float8_e5m2fnuz")
    return jax.default_backend() == "cpu" and cell.dtype not in wrong


def _run_batch(cells: list[Cell], check_vma: bool, options: dict[str, Any]) -> dict[int, str]:
    """Runs all cells in one program.

    If XLA refuses that program, this runs a program for each operation. If XLA refuses such a
    program too, this runs a program for each of its cells.
    """

    def place(cell: Cell) -> tuple[str, tuple[int, ...]]:
        return cell.dtype, cell.operation.shape

    inputs = {place(cell): _inputs(cell.operation, cell.dtype) for cell in cells}
    exact = {
        place(cell): reference.values(cell.dtype, cell.operation.shape, 3, exact=True)
        for cell in cells
    }
    mesh = jax.make_mesh((RANKS,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    split, same = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("i",), ()))
    arguments = jax.tree.map(lambda x: _put(x, split), inputs), _put(np.array(True), same)
    results: dict[int, str] = {}

    def body(arrays, flag):
        out = {}
        for i, cell in enumerate(cells):
            if i in results:
                continue
            values = Values(arrays[place(cell)][0], exact[place(cell)], flag, ranks=False)
            try:
                got = cell.transformation.apply(cell.operation.call, values)
                out[i] = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], got)
            except Exception as error:
                results[i] = _message(error)
        return out

    specs = {"in_specs": (jax.P("i"), jax.P()), "out_specs": jax.P("i")}
    program = jax.jit(
        jax.shard_map(body, mesh=mesh, check_vma=check_vma, **specs), compiler_options=options
    )
    try:
        outs = jax.block_until_ready(program(*arguments))
    except Exception as error:
        if len(cells) == 1:
            return {0: _message(error)}
        parts = list(by_operation(cells))
        logging.info("in parts: %s", _message(error)[:200])
        if len(parts) == 1:
            parts = [[cell] for cell in cells]
        found = [_run_batch(part, check_vma, options) for part in parts]
        return dict(enumerate(part[i] for part in found for i in range(len(part))))
    for i, out in outs.items():
        cell = cells[i]
        values = Values(inputs[place(cell)], exact[place(cell)], True, ranks=True)
        expected = cell.transformation.expect(cell.operation, values, check_vma)
        results[i] = _compare(out, expected)
    return results


def _inputs(operation: Operation, dtype: str) -> np.ndarray:
    return np.stack([reference.values(dtype, operation.shape, seed) for seed in (1, 2)], axis=1)


def _put(x: np.ndarray, sharding: jax.NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def _compare(actual: Any, expected: Any) -> str:
    if jax.tree.structure(actual) != jax.tree.structure(expected):
        return f"{WRONG}: got {jax.tree.structure(actual)}"
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for array, wanted in pairs:
        if array.shape != wanted.shape:
            return f"{WRONG}: got shape {array.shape}, expected {wanted.shape}"
        for shard in array.addressable_shards:
            wrong = reference.difference(np.asarray(shard.data), wanted[shard.index])
            if wrong:
                return f"{WRONG}: {wrong}"
    return OK


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"
