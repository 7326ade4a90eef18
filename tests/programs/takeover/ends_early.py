"""Ends while jax_cxl starts in the background.

    ends_early.py STAGE ENDING

STAGE is a function that jax_cxl calls when it starts. In this program, the function first waits a
second in native code.
ENDING is how each process ends once it has reached STAGE.
"""

import contextlib
import importlib
import os
import signal
import sys
import threading

import jax

from jax_cxl import _compat

_reached = threading.Event()


def _delay(stage: str) -> None:
    module, _, name = stage.rpartition(".")
    owner = importlib.import_module(module)
    original = getattr(owner, name)

    def slow(*arguments, **options):
        _reached.set()
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            _compat.distributed.client().blocking_key_value_get("nobody sets this", 1000)
        return original(*arguments, **options)

    setattr(owner, name, slow)


def main(stage: str, ending: str) -> None:
    _delay(stage)
    jax.distributed.initialize()
    print(f"{len(jax.devices())} devices", flush=True)
    assert _reached.wait(60)
    if ending == "raises":
        raise ValueError("of the user")
    if ending == "exits":
        sys.exit(3)
    if ending == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)


main(*sys.argv[1:])
