"""The check of slices for a ragged_all_to_all that moves no rows through the pool.

Usually the executors check the slices (cc/plan/slices.h). In three cases a separate custom call
checks them, with the same errors: under `jax.vmap` over the axis of the exchange, in a group of one
rank, and if there are no bytes to move. XLA removes computations of arrays without elements, so no
check runs if the result of the exchange has no elements.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching, mlir

from jax_cxl import _compat
from jax_cxl._job import lifecycle, platforms
from jax_cxl._lowering import contract

# Takes tables of shape (..., ranks, 4, entries) and any other arrays, and returns all of them
# unchanged.
_check_slices_p = _compat.tracing.Primitive("check_slices")
_check_slices_p.multiple_results = True


def checked(tables: Any, *values: Any, rows: int, into: int, elements: int) -> list[Any]:
    """Checks the tables of all ranks of a group. Returns the tables and `values`, unchanged.

    If the tables are wrong, the program fails at run time. The check runs only if a result is used.
    Values with a batch dimension, or with derivatives, are not supported.
    """
    sizes = (rows, into, tables.shape[-1] // tables.shape[0], elements)
    return _check_slices_p.bind(tables, *values, rows=sizes)


def _lower(ctx, *operands, rows):
    for platform in platforms.ALL:
        if platform.name in ctx.module_context.platforms:
            lifecycle.register_handlers(platform)
    call = jax.ffi.ffi_lowering(
        contract.CHECK_SLICES_TARGET,
        operand_output_aliases={i: i for i in range(len(operands))},
        # XLA removes a call without a side effect if its results have no bytes.
        has_side_effect=True,
    )
    return call(ctx, *operands, rows=np.asarray(rows, np.int64))


def _batch(operands, dims, *, rows):
    (tables,), (d,) = operands, dims
    return _check_slices_p.bind(jnp.moveaxis(tables, d, 0), rows=rows), [0]


@_check_slices_p.def_abstract_eval
def _abstract_eval(*operands, rows):
    return operands


for _platform in platforms.ALL:
    mlir.register_lowering(_check_slices_p, _lower, platform=_platform.name)
_check: Any = jax.jit(_check_slices_p.bind, static_argnames=("rows",))
_check_slices_p.def_impl(_check)
batching.primitive_batchers[_check_slices_p] = _batch
