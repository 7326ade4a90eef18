"""The coordination service of `jax.distributed`, and its key-value store."""

import contextlib
import ctypes
from typing import Any

import jax
from jax._src import distributed as _distributed

_distributed.global_state.client  # noqa: B018


def client() -> Any:
    """The client of JAX's coordination service; None without `jax.distributed`."""
    return _distributed.global_state.client


def process_id() -> int:
    """The number of this process in `jax.distributed`. `jax.process_index` would make a backend."""
    return _distributed.global_state.process_id


def process_count() -> int:
    """The number of processes in `jax.distributed`. `jax.process_count` would make a backend."""
    return _distributed.global_state.num_processes or 1


def connected() -> bool:
    """Returns whether `jax.distributed` has connected several processes."""
    return client() is not None and process_count() > 1


def post(folder: str, text: str) -> None:
    """Sets the key FOLDER/P, where P is this process's number, unless the service is gone."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        client().key_value_set(f"{folder}/{process_id()}", text, allow_overwrite=True)


def entries(folder: str) -> dict[str, str]:
    """Returns the values of all keys FOLDER/NAME, by NAME."""
    found = client().key_value_dir_get(f"{folder}/")
    return {key.rpartition("/")[2]: text for key, text in found}


def key_value(key: str, milliseconds: int) -> str | None:
    """Returns the value of a key in the coordination service, None if it gets none in time."""
    try:
        return client().blocking_key_value_get(key, milliseconds)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise


def hosts_service() -> bool:
    """Whether this process hosts the coordination service."""
    return _distributed.global_state.service is not None


def leave_without_barrier() -> None:
    """Lets the program end without JAX's barrier at exit, after a process has died.

    At that barrier JAX waits for all processes. If a process does not arrive, JAX aborts this one.
    """
    state: Any = _distributed.global_state
    for held in (state.client, state.service):
        # The destructor would also wait at the barrier, so keep the object alive.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    state.client = state.service = state.preemption_sync_manager = None
