"""Chooses which kind of collectives a program gets when it is compiled."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import empty_call
import jax
from jax.extend import xla

import jax_cxl
from jax_cxl import _compat
from jax_cxl._commands.measuring.world import World
from jax_cxl._lowering import contract
from jax_cxl._takeover import hook, install

# OWN: XLA's own collectives. OURS: the pool's. IN_PLACE, on GPUs only: the pool's without early
# starts, so they stay where XLA has scheduled them. WAITING, on CPUs only: calls that only wait for
# the other ranks. NOTHING: calls that do nothing. WAITING and NOTHING give wrong results.
OWN, OURS, IN_PLACE = "xla", "jax_cxl", "jax_cxl_in_place"
WAITING, NOTHING = "waiting", "nothing"
_PREFIX = b"jax_cxl_"
# These prefixes replace _PREFIX in a serialized module. They are as long as _PREFIX, because the
# module contains the lengths of its strings.
_PREFIXES = {WAITING: b"waiting_", NOTHING: b"nothing_"}
_TARGETS = (contract.COLLECTIVE_TARGET, contract.START_TARGET, contract.DONE_TARGET)


def prepare(world: World) -> None:
    """Registers the calls of WAITING and NOTHING. JAX must already be initialized."""
    on_cpus = _platform() == "cpu"
    empty_call.register(*_renamed(NOTHING), platform="cpu" if on_cpus else "CUDA")
    if on_cpus:
        path = f"/dev/shm/jax_cxl_benchmark_{int(world.gather(os.getpid())[0])}"
        empty_call.register_waiting(*_renamed(WAITING), path=path, rank=world.rank, size=world.size)
        world.barrier()
        pathlib.Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def compiling(mode: str) -> Iterator[None]:
    """Makes programs that are compiled inside this context use the collectives of `mode`."""
    if mode != OWN:
        emptied = _emptied(mode) if mode in _PREFIXES else contextlib.nullcontext()
        in_place = {"early_bytes": None} if mode == IN_PLACE else {}
        with emptied, jax_cxl.replace_collectives(**in_place):
            yield
        return
    # Remove the hook: while it is registered, XLA serializes each module for it, which takes time.
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
def _emptied(mode: str) -> Iterator[None]:
    original = hook.transform

    def transform(*arguments: Any) -> bytes | None:
        module = original(*arguments)
        return None if module is None else module.replace(_PREFIX, _PREFIXES[mode])

    with mock.patch.object(hook, "transform", transform):
        yield


def _renamed(mode: str) -> list[str]:
    return [target.replace(_PREFIX.decode(), _PREFIXES[mode].decode()) for target in _TARGETS]


def _platform() -> str:
    return jax.devices()[0].platform
