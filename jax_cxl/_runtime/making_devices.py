"""Which processes make their devices, which JAX does in all of them together.

A process that has not called `jax_cxl.initialize` may be about to do so when it lowers its first
collective. Before that it makes its devices, and JAX lets it wait there for the other processes:
those in `initialize` must not wait for it. JAX calls the plugin (_takeover/plugin.py) when
it makes devices, and the plugin says so in JAX's key-value store.
"""

import contextlib

import jax

from jax_cxl import _compat

_FOLDER = "jax_cxl/making_devices/"


def announce() -> None:
    """Says that this process makes its devices, if there are other processes."""
    client = _compat.coordination_client()
    if client is not None and _compat.process_count() > 1:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # The service may be gone.
            client.key_value_set(f"{_FOLDER}{_compat.process_id()}", "", allow_overwrite=True)


def announced() -> set[int]:
    """Returns the processes that have begun to make their devices."""
    entries = _compat.coordination_client().key_value_dir_get(_FOLDER)
    return {int(key.rpartition("/")[2]) for key, _ in entries}
