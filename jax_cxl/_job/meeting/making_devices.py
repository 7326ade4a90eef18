"""Which processes are making their devices.

JAX makes the devices of all processes together: a process that makes its devices waits for the
others. Such a process may start jax_cxl only later, when it lowers its first collective. So the
processes that are in `initialize` must not wait for it there: they make their devices too. JAX
calls the plugin (_takeover/plugin.py) when it makes devices, and the plugin announces this in JAX's
key-value store:

    jax_cxl/making_devices/P   "1" if process P replaces the collectives of programs, otherwise "0"
"""

import contextlib

import jax

from jax_cxl import _compat, errors
from jax_cxl._job import variables

_FOLDER = "jax_cxl/making_devices/"


def announce(replaces: bool) -> None:
    """Announces that this process makes its devices, if there are other processes.

    Args:
      replaces: whether `JAX_CXL_REPLACE_COLLECTIVES` replaces the collectives of this process.
    """
    client = _compat.distributed.client()
    if client is not None and _compat.distributed.process_count() > 1:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # The service may be gone.
            client.key_value_set(
                f"{_FOLDER}{_compat.distributed.process_id()}",
                str(int(replaces)),
                allow_overwrite=True,
            )


def announced() -> set[int]:
    """Returns the processes that have begun to make their devices."""
    return set(_announcements())


def check_replacement(replaces: bool) -> None:
    """Checks that all processes replace collectives, or none does. Call it when there are devices.

    Otherwise some processes would wait in the pool, and others would wait in a collective of XLA.

    Args:
      replaces: what this process has announced.

    Raises:
      MismatchError: another process has announced the opposite, or does not have jax_cxl.
    """
    client = _compat.distributed.client()
    if client is None or _compat.distributed.process_count() == 1:
        return
    try:
        announcements = _announcements()
    except jax.errors.JaxRuntimeError:  # The service may be gone.
        return
    everyone = range(_compat.distributed.process_count())
    others = [process for process in everyone if announcements.get(process, False) != replaces]
    if not others:
        return
    mine, theirs = [_compat.distributed.process_id()], others
    with_it, without = (mine, theirs) if replaces else (theirs, mine)
    raise errors.MismatchError(
        f"{variables.REPLACE_COLLECTIVES} is set in {_names(with_it)} and not in {_names(without)}:"
        " some would communicate through the pool, and others by XLA's collectives. Set it in all"
        " processes, or in none, and install jax_cxl for all"
    )


def _announcements() -> dict[int, bool]:
    entries = _compat.distributed.client().key_value_dir_get(_FOLDER)
    return {int(key.rpartition("/")[2]): value == "1" for key, value in entries}


def _names(processes: list[int]) -> str:
    few = ", ".join(map(str, processes[:8])) + (", ..." if len(processes) > 8 else "")
    return f"process {few}" if len(processes) == 1 else f"processes {few}"
