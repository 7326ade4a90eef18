"""Compiles and runs programs without JAX's own functions for that."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import compiler as _compiler
from jax._src.interpreters import mlir as _mlir
from jax._src.lib import xla_client as _xla_client
from jax._src.lib.mlir import ir as _ir

_compiler.get_compile_options, _mlir.make_ir_context  # noqa: B018
_xla_client.Client.compile_and_load, _xla_client.DeviceList  # noqa: B018
_xla_client.LoadedExecutable.execute_sharded  # noqa: B018


def compile_for_each(text: str, devices: Sequence[jax.Device]) -> Any:
    """Compiles a program in MLIR for some devices of this process. Each runs it for itself.

    With a thousand operands, an equal program of `jax.jit` or `jax.shard_map` takes several times
    as long to compile. For most of that time, no other thread can run Python.
    """
    options = _compiler.get_compile_options(
        num_replicas=len(devices),
        num_partitions=1,
        device_assignment=np.array([[device.id] for device in devices]),
    )
    client: Any = devices[0].client
    context = _mlir.make_ir_context()
    with context, _ir.Location.unknown(context):
        module = _ir.Module.parse(text)
    return client.compile_and_load(module, _xla_client.DeviceList(tuple(devices)), options)


def run(program: Any, operands: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Runs a program of `compile_for_each` with one result. Returns the result of each device.

    The parts of the operands are on the devices of the program, in the order of these devices.
    Their sizes in bytes must match the program. Nothing else is checked.
    """
    (results,) = program.execute_sharded(operands).disassemble_into_single_device_arrays()
    return results
