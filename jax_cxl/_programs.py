"""Which programs this process lowers, and when XLA has loaded them.

The handlers tell the collectives of a program apart by the order in which XLA makes
their custom calls (cc/ffi/program_sites.h), and need to know where one program ends
and the next begins.
"""

import threading
from typing import Any

import jax

from jax_cxl import _compat, _core

_lowered = threading.local()


def name(module: Any) -> str:
    """Returns the name of the module that is being lowered, the same on all ranks."""
    symbol = module.operation.attributes["sym_name"].value
    if not hasattr(_lowered, "names"):
        _lowered.names = set()
    _lowered.names.add(symbol)
    return symbol


def listen() -> None:
    """Tells the handlers from now on when a program is complete."""
    jax.monitoring.register_event_duration_secs_listener(_on_duration)


def _on_duration(event: str, duration_secs: float, **_: str | int) -> None:
    if event != _compat.BACKEND_COMPILE_EVENT:
        return
    # Which program it was is not said reliably, but it was compiled by the thread that lowered
    # it; for its other programs, none of which is being loaded now, this changes nothing.
    for program in getattr(_lowered, "names", ()):
        _core.complete_program(program)
