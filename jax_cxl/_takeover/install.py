"""Puts the hook into XLA's compiler, and what belongs to it into JAX."""

import re
import threading
from typing import Any

import jax

from jax_cxl import _compat
from jax_cxl._runtime import program_errors
from jax_cxl._takeover import hook, setting, start

_lock = threading.Lock()
_installed = False


def install() -> None:
    """Installs the hook for the default backend's programs, once. It makes the backend."""
    global _installed
    platform = jax.devices()[0].platform
    with _lock:
        if _installed:
            return
        _compat.register_compiler_hook(platform, _on_module)
        _compat.extend_cache_key(_cache_key)
        program_errors.add_source(_strictness)
        program_errors.install()
        _installed = True


def _on_module(data: bytes) -> bytes | None:
    wanted = setting.current()
    if wanted is None:
        return None
    return hook.transform(data, lambda: start.world(wanted.local), wanted.strict)


def _cache_key() -> str:
    """What programs depend on besides what JAX knows of, for its persistent cache."""
    wanted = setting.current()
    if wanted is None:
        return ""
    world: Any = start.world(wanted.local)
    return f"jax_cxl: {wanted} {sorted(world.rank_of.items())} {world.generation}"


def _strictness(text: str) -> program_errors.Failure | None:
    """Finds the hook's error in what XLA makes of it: a traceback."""
    found = re.search(re.escape(hook.STRICT) + ".*", text)
    return program_errors.Failure("INVALID_ARGUMENT", found[0]) if found else None
