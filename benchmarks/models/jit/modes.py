"""Which collectives a program gets when it is compiled."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import empty_call
import jax
from jax.extend import xla

import jax_cxl
from jax_cxl import _compat
from jax_cxl._lowering import contract
from jax_cxl._takeover import hook, install

# XLA's own collectives; the pool's; the pool's, but on GPUs at the places of XLA's schedule; and
# calls that do nothing, which give wrong results.
OWN, OURS, IN_PLACE, NOTHING = "xla", "jax_cxl", "jax_cxl_in_place", "nothing"
_PREFIX, _EMPTY_PREFIX = b"jax_cxl_", b"nothing_"


def prepare() -> None:
    """Registers the calls that do nothing. The devices must be there."""
    targets = [
        contract.COLLECTIVE_TARGET,
        contract.START_TARGET,
        contract.DONE_TARGET,
    ]
    empty_call.register(
        *(_without_transport(target.encode()).decode() for target in targets),
        platform="cpu" if _platform() == "cpu" else "CUDA",
    )


@contextlib.contextmanager
def compiling(mode: str) -> Iterator[None]:
    """Makes programs that are compiled in it use one kind of collectives."""
    if mode != OWN:
        emptied = _emptied() if mode == NOTHING else contextlib.nullcontext()
        in_place = {"early_bytes": None} if mode == IN_PLACE else {}
        with emptied, jax_cxl.replace_collectives(**in_place):
            yield
        return
    # Where the hook is registered, XLA writes each module for it.
    platform = _platform()
    removed = xla.clear_hlo_module_transformation(
        "jax_cxl", platforms="cpu" if platform == "cpu" else "cuda"
    )
    try:
        yield
    finally:
        if removed:
            _compat.compilation.register_compiler_hook(platform, install._on_module)


@contextlib.contextmanager
def _emptied() -> Iterator[None]:
    original = hook.transform

    def transform(*arguments: Any) -> bytes | None:
        module = original(*arguments)
        return None if module is None else _without_transport(module)

    with mock.patch.object(hook, "transform", transform):
        yield


def _without_transport(data: bytes) -> bytes:
    # The names have the same length, because a serialized module counts its bytes.
    return data.replace(_PREFIX, _EMPTY_PREFIX)


def _platform() -> str:
    return jax.devices()[0].platform
