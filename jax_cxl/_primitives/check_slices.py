"""The check of slices where a ragged_all_to_all moves no rows through the pool.

Everywhere else the executors check the slices (cc/plan/slices.h). Here a custom call of its own
does, with the same errors: under `jax.vmap` over the axis of the exchange, in a group of one rank,
and if there are no bytes to move.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import batching, mlir

from jax_cxl._primitives import call_attributes
from jax_cxl._runtime import lifecycle, platforms

# Takes and returns tables of shape (..., ranks, 4, entries).
_check_slices_p = core.Primitive("check_slices")


def checked(tables: Any, rows: int, into: int, elements: int) -> Any:
    """Returns the tables of all ranks of a group. At run time the program fails if they are wrong.

    The check runs if the returned tables are used.

    Args:
      tables: integers of shape (ranks, 4, entries).
      rows: number of rows of each rank's operand.
      into: number of rows of each rank's output.
      elements: number of exchanges of the batch.
    """
    sizes = (rows, into, tables.shape[-1] // tables.shape[0], elements)
    return _check_slices_p.bind(tables, rows=sizes)


def after(tables: Any, x: Any) -> Any:
    """Returns x. Uses of x come after the check of `tables`."""
    return lax.optimization_barrier((tables, x))[1]


def _lower(ctx, tables, *, rows):
    for platform in platforms.ALL:
        if platform.name in ctx.module_context.platforms:
            lifecycle.register_handlers(platform)
    # XLA removes calls without a side effect whose results have no bytes.
    call = jax.ffi.ffi_lowering(
        call_attributes.CHECK_SLICES_TARGET,
        operand_output_aliases={0: 0},
        has_side_effect=True,
    )
    return call(ctx, tables, rows=np.asarray(rows, np.int64))


def _batch(operands, dims, *, rows):
    return _check_slices_p.bind(jnp.moveaxis(operands[0], dims[0], 0), rows=rows), 0


@_check_slices_p.def_abstract_eval
def _abstract_eval(tables, *, rows):
    return tables


for _platform in platforms.ALL:
    mlir.register_lowering(_check_slices_p, _lower, platform=_platform.name)
_check_slices_p.def_impl(lambda tables, **params: _check(tables, **params))
_check = jax.jit(_check_slices_p.bind, static_argnames=("rows",))
batching.primitive_batchers[_check_slices_p] = _batch
