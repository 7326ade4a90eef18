"""Installs the hook in XLA's compiler, and extends JAX's cache keys and errors for it."""

import functools
import hashlib
import pathlib
import re
import threading

import jax

from jax_cxl import _compat
from jax_cxl._job import lowered_programs, setting
from jax_cxl._job.ending import program_errors
from jax_cxl._takeover import hook, start, survey

_lock = threading.Lock()
_installed = False


def install() -> None:
    """Installs the hook once, for programs of the default backend. This makes the backend if JAX
    has not made it yet."""
    global _installed
    platform = jax.devices()[0].platform
    with _lock:
        if _installed:
            return
        _compat.compilation.register_compiler_hook(platform, _on_module)
        _compat.compilation.extend_cache_key(_cache_key)
        lowered_programs.install()
        program_errors.add_source(_strictness)
        program_errors.install()
        _installed = True


def _on_module(data: bytes) -> bytes | None:
    wanted = setting.current()
    decisions = hook.Decisions()
    after = None
    if wanted is not None:
        world = functools.partial(start.world, wanted)
        after = hook.transform(data, world, wanted.strict, decisions, wanted.early_bytes)
    if survey.listeners:
        survey.tell(data, start.devices(), wanted, decisions)
    return after


def _cache_key(devices: list[int]) -> str:
    """Returns an addition to a key of JAX's persistent cache.

    The addition contains what the hook's changes of a program depend on, such as the ranks of its
    `devices`, which are in the program's order.
    """
    wanted = setting.current()
    if wanted is None:
        return survey.cache_key()
    key = f"{code()} {wanted} {devices}{survey.cache_key()}"
    # The hook changes only programs for whose devices `World.why_not` is empty. The key of any
    # other program has no ranks, so such a program need not wait for the job to start.
    if start.devices()._replace(local=wanted.local).why_not([devices]):
        return key
    world = start.world(wanted)
    return f"{key} {sorted(world.rank_of.items())} {world.generation}"


@functools.cache
def code() -> str:
    """Returns a digest of the code that changes programs.

    It is a part of the cache key. Otherwise a process that compiles with one version of this code
    could order collectives differently from a process that finds the program, made by another
    version, in its cache.
    """
    folder, digest = pathlib.Path(__file__).parents[1], hashlib.sha256()
    for name in ("_lowering", "_takeover"):
        for file in sorted((folder / name).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _strictness(text: str) -> tuple[str, str] | None:
    """Finds the hook's error of strict mode in the text of XLA's error, which has a traceback.

    Returns its code and its text, or None.
    """
    found = re.search(re.escape(hook.STRICT) + ".*", text)
    return ("INVALID_ARGUMENT", found[0]) if found else None
