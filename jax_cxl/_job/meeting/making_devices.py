"""Which processes are making their devices.

JAX makes the devices of all processes together: a process that makes its devices waits for the
others. Such a process may start jax_cxl only later, when it lowers its first collective. So the
processes that are in `initialize` must not wait for it there: they make their devices too. JAX
calls the plugin (_takeover/plugin.py) when it makes devices, and the plugin announces this in JAX's
key-value store.
"""

import contextlib

import jax

from jax_cxl import _compat

_FOLDER = "jax_cxl/making_devices/"


def announce() -> None:
    """Announces that this process makes its devices, if there are other processes."""
    client = _compat.coordination_client()
    if client is not None and _compat.process_count() > 1:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # The service may be gone.
            client.key_value_set(f"{_FOLDER}{_compat.process_id()}", "", allow_overwrite=True)


def announced() -> set[int]:
    """Returns the processes that have begun to make their devices."""
    entries = _compat.coordination_client().key_value_dir_get(_FOLDER)
    return {int(key.rpartition("/")[2]) for key, _ in entries}
