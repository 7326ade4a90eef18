"""jax_cxl.process_gather.

The processes exchange dtypes and shapes first. Then the data go through the pool in collectives, as
bytes, in parts of equal size for all processes.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cxl import errors
from jax_cxl._job import exchange
from jax_cxl.ops.rooted import gather

# The most bytes that a process sends in one collective. This bounds the memory of the root.
_PART_BYTES = 16 << 20


def process_gather(x: Any, *, root: int = 0, timeout: float | None = None) -> list[Any] | None:
    """Gathers host data of all processes in one process, outside of compiled programs.

    All processes have to call it, in the same order. Shapes and dtypes may differ between
    processes. Only the root gets the data of the others. (With
    `jax.experimental.multihost_utils.process_allgather` all processes get all data.)

    Args:
      x: pytree of arrays and numbers, of any numeric dtype of JAX or NumPy. JAX arrays have to be
        fully addressable.
      root: the process that gets the data.
      timeout: for how many seconds to wait for the other processes, `JAX_CXL_TIMEOUT` by default.

    Returns:
      On the root, a list with the pytree of each process, in the order of the processes,
      with NumPy arrays as leaves. None in the other processes.

    Raises:
      CollectiveTimeoutError: a process has not called it in time. The message names it.
      MismatchError: the pytrees have different structures, or the roots differ.
      PeerLostError: a process has ended.
      TypeError: a leaf is not an array of numbers, or is not fully addressable.
      ValueError: there is no process `root`.

    Example:
      >>> losses = jax_cxl.process_gather({"loss": np.float32(0.5)})
      >>> if losses is not None:
      ...   print([float(each["loss"]) for each in losses])
      [0.5, 0.5]
    """
    leaves, structure = jax.tree.flatten(x)
    arrays = [_as_array(leaf) for leaf in leaves]
    processes = exchange.processes()
    if root not in processes:
        raise ValueError(
            f"process_gather: there is no process {root}. Pass a root out of {processes}"
        )
    mine = {
        "structure": str(structure),
        "root": root,
        "leaves": [[array.dtype.name, array.shape] for array in arrays],
    }
    told = exchange.all_gather(
        "process_gather", "process_gather", json.dumps(mine).encode(), timeout
    )
    described = [json.loads(text) for text in told]
    _check_alike(mine, described, processes)
    data = np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)
    most = max(sum(map(_bytes_of, each["leaves"])) for each in described)
    received = _gather_bytes(data, most, processes, root)
    if received is None:
        return None
    return [
        jax.tree.unflatten(structure, _arrays(each["leaves"], row))
        for each, row in zip(described, received, strict=True)
    ]


def _as_array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise TypeError(
            "process_gather: an array has shards in other processes. Pass the data of its"
            " addressable shards, or call jax_cxl.gather in a program"
        )
    array = np.asarray(leaf)
    try:
        known = jnp.dtype(array.dtype.name) == array.dtype and array.dtype.kind not in "OSUMm"
    except TypeError:
        known = False
    if not known:
        raise TypeError(
            f"process_gather: a leaf of type {type(leaf).__name__} and dtype {array.dtype} has no"
            " numbers. Pass arrays of numbers"
        )
    return array


def _check_alike(
    mine: dict[str, Any], described: Sequence[dict[str, Any]], processes: Sequence[int]
) -> None:
    for process, theirs in zip(processes, described, strict=True):
        for key in ("root", "structure"):
            if theirs[key] != mine[key]:
                error = errors.MismatchError(
                    f"process_gather: the {key} is {mine[key]} here, and {theirs[key]} in process"
                    f" {process}"
                )
                error.ranks = tuple(
                    exchange.ranks_of([one])[0] for one in (jax.process_index(), process)
                )
                raise error


def _bytes_of(leaf: Sequence[Any]) -> int:
    name, shape = leaf
    return math.prod(shape) * jnp.dtype(name).itemsize


def _gather_bytes(
    data: np.ndarray, most: int, processes: list[int], root: int
) -> np.ndarray | None:
    """On the root, returns the bytes of all processes: shape [processes, `most`], uint8.

    `most` is the number of bytes of the process that has the most. Other processes get None.
    """
    if len(processes) == 1:
        return data[None]
    first = {d.process_index: d for d in reversed(jax.devices())}
    mesh = jax.sharding.Mesh([first[process] for process in processes], ("process",))
    sharding = jax.NamedSharding(mesh, jax.P("process"))
    part = min(most, _PART_BYTES)
    program = jax.jit(
        jax.shard_map(
            lambda x: gather(x, "process", root=processes.index(root), tiled=True),
            mesh=mesh,
            in_specs=jax.P("process"),
            out_specs=jax.P("process"),
        )
    )
    is_root = jax.process_index() == root
    received = np.empty((len(processes), most), np.uint8) if is_root else None
    for start in range(0, most, max(part, 1)):
        mine = np.zeros(part, np.uint8)
        piece = data[start : start + part]
        mine[: len(piece)] = piece
        shape = (len(processes) * part,)
        parts = program(jax.make_array_from_process_local_data(sharding, mine, shape))
        if received is not None:
            rows = np.asarray(parts.addressable_shards[0].data).reshape(len(processes), part)
            received[:, start : start + part] = rows[:, : most - start]
        else:
            parts.block_until_ready()
    return received


def _arrays(leaves: Sequence[Sequence[Any]], row: np.ndarray) -> list[np.ndarray]:
    """Returns the arrays whose bytes follow each other in `row`."""
    arrays, start = [], 0
    for name, shape in leaves:
        end = start + _bytes_of((name, shape))
        arrays.append(np.frombuffer(row[start:end].tobytes(), jnp.dtype(name)).reshape(shape))
        start = end
    return arrays
