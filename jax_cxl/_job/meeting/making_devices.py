"""Which processes are making their devices.

JAX makes the devices of all processes together: a process that makes its devices waits until the
others make theirs. Such a process may start jax_cxl only later, when it lowers its first
collective. Other processes may already be in `initialize`. They must not wait there for that
process before they have made their own devices. JAX calls the plugin (_takeover/plugin.py) when it
makes devices, and the plugin announces this in JAX's key-value store:

    jax_cxl/making_devices/P   "1" if process P replaces the collectives of programs, otherwise "0"
"""

import jax

from jax_cxl import _compat, _text, errors
from jax_cxl._job import variables

_FOLDER = "jax_cxl/making_devices"


def announce(replaces: bool) -> None:
    """Announces that this process makes its devices, and whether it replaces collectives."""
    if _compat.distributed.connected():
        _compat.distributed.post(_FOLDER, str(int(replaces)))


def announcements() -> dict[int, bool]:
    """Returns, for each process that has begun to make its devices, what it announced.

    That is whether it replaces collectives.
    """
    entries = _compat.distributed.entries(_FOLDER)
    return {int(process): value == "1" for process, value in entries.items()}


def check_replacement(replaces: bool) -> None:
    """Checks that all processes replace collectives, or none does. Call it when there are devices.

    Otherwise some processes would wait in the pool, and others would wait in a collective of XLA.
    """
    if not _compat.distributed.connected():
        return
    try:
        announced = announcements()
    except jax.errors.JaxRuntimeError:  # The service may be gone.
        return
    everyone = range(_compat.distributed.process_count())
    others = [process for process in everyone if announced.get(process, False) != replaces]
    if not others:
        return
    mine, theirs = [_compat.distributed.process_id()], others
    sides = (mine, theirs) if replaces else (theirs, mine)
    with_it, without = (_text.numbered("process", side) for side in sides)
    raise errors.MismatchError(
        f"{variables.REPLACE_COLLECTIVES} is set in {with_it} and not in {without}: some would"
        " communicate through the pool, and others with XLA's collectives. Set it in all processes,"
        " or in none, and install jax_cxl for all"
    )
