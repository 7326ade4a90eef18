"""jax_cxl.process_gather.

The processes exchange dtypes and shapes first. Then they exchange the data, as bytes and in parts.
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

# The most bytes that all processes send in one exchange. This bounds the memory of each.
_EXCHANGE_BYTES = 64 << 20


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
    described = [json.loads(text) for text in _exchange(json.dumps(mine).encode(), timeout)]
    _check_alike(mine, described, processes)
    data = b"".join(array.tobytes() for array in arrays)
    most = max(sum(map(_bytes_of, each["leaves"])) for each in described)
    received = [bytearray() for _ in processes]
    size = max(1, _EXCHANGE_BYTES // len(processes))
    for start in range(0, most, size):
        # The text differs, so that a process that calls again after a timeout gets a MismatchError
        # from one that is still here.
        parts = _exchange(data[start : start + size], timeout, f"process_gather, byte {start}")
        if jax.process_index() == root:
            for whole, part in zip(received, parts, strict=True):
                whole += part
    if jax.process_index() != root:
        return None
    return [
        jax.tree.unflatten(structure, _arrays(each["leaves"], whole))
        for each, whole in zip(described, received, strict=True)
    ]


def _exchange(data: bytes, timeout: float | None, what: str = "process_gather") -> list[bytes]:
    return exchange.all_gather("process_gather", what, data, timeout)


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


def _arrays(leaves: Sequence[Sequence[Any]], data: bytearray) -> list[np.ndarray]:
    """Returns the arrays whose bytes follow each other in `data`."""
    arrays, start = [], 0
    for name, shape in leaves:
        end = start + _bytes_of((name, shape))
        arrays.append(np.frombuffer(data[start:end], jnp.dtype(name)).reshape(shape))
        start = end
    return arrays
