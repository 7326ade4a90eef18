"""Everything this package takes from JAX's private modules.

The collectives need two things that JAX does not export: the effect that ties an
equation to a named axis, and whether `jax.shard_map` runs with `check_vma`. The
runtime needs the key-value store of `jax.distributed`, and the name of the event
that ends a compilation. They have kept their names since JAX 0.10; when one of
them moves, this is the only file to change.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

try:
    from jax._src import config as _config
    from jax._src import distributed as _distributed
    from jax._src import source_info_util as _source_info_util
    from jax._src.core import NamedAxisEffect
    from jax._src.dispatch import BACKEND_COMPILE_EVENT
    from jax._src.interpreters import mlir as _mlir
    from jax._src.lax import parallel as _parallel

    # Fail here and not in the first call.
    _config._check_vma.value  # noqa: B018
    _distributed.global_state.client  # noqa: B018
    _mlir._lowerings, _mlir._platform_specific_lowerings  # noqa: B018
    _source_info_util.user_frames  # noqa: B018
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"jax_cxl does not work with jax {jax.__version__}: {error}. It is tested with jax 0.10"
        " to 0.12: install one of these, or a newer jax_cxl."
    ) from error

# How long processes wait for each other at start-up, in milliseconds. Covers a
# process that compiles or loads data before it first communicates.
MEETING_TIMEOUT_MS = 300_000

__all__ = [
    "BACKEND_COMPILE_EVENT",
    "MEETING_TIMEOUT_MS",
    "NamedAxisEffect",
    "check_vma",
    "coordination_client",
    "forbidden_axes",
    "forget_topology",
    "jitted_function_type",
    "key_value",
    "lax_primitives",
    "lowering_rule",
    "make_runtime_errors",
    "user_frames",
]


def check_vma() -> bool:
    """Whether the function being traced runs under `shard_map(check_vma=True)`."""
    return _config._check_vma.value


def forbidden_axes() -> tuple:
    """Axes over which `no_collectives` (absent in JAX 0.10) forbids communication."""
    state = getattr(_config, "no_collectives", None)
    return tuple(state.value or ()) if state is not None else ()


def coordination_client() -> Any:
    """The client of JAX's coordination service; None without `jax.distributed`."""
    return _distributed.global_state.client


def key_value(key: str) -> str | None:
    """What is under a key of the coordination service, None if nothing is."""
    try:
        return coordination_client().key_value_try_get(key)
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" in str(error):
            return None
        raise


def forget_topology() -> None:
    """Lets another process 0 than the first one tell the others which devices there are.

    The first has put that under a key that XLA does not overwrite. The other processes have read
    it, and do not read it again.
    """
    coordination_client().key_value_delete("cpu:global_topology/cpu")


def lax_primitives(name: str) -> tuple:
    """The primitive behind a `jax.lax` collective, or none if this JAX has no such one."""
    primitive = getattr(_parallel, name, None)
    return () if primitive is None else (primitive,)


def lowering_rule(primitive: Any, platform: str) -> Any:
    """JAX's lowering rule of a primitive on a platform, None without one."""
    special = _mlir._platform_specific_lowerings[platform].get(primitive)
    entry = special or _mlir._lowerings.get(primitive)
    return None if entry is None else entry.rule


def user_frames(ctx: Any) -> Any:
    """The frames outside JAX that led to the equation being lowered, innermost first."""
    return _source_info_util.user_frames(ctx.traceback)


def jitted_function_type() -> Any:
    """The type of what `jax.jit` returns."""
    return type(jax.jit(lambda: None))


def make_runtime_errors(make: Callable[[str], BaseException | None]) -> None:
    """Lets `make` choose what is raised where JAX raises `jax.errors.JaxRuntimeError`.

    XLA's errors become Python exceptions in native code, at many places: dispatch,
    `block_until_ready`, `np.asarray`, `jax.device_get`. All of them instantiate this class, and
    Python lets the instance, not the class that was asked for, say what was raised, as long as it
    is an instance of a subclass. The class is an ordinary one (nanobind makes it like a `class`
    statement does), so it can be given a `__new__`. It behaves as before for everything that
    `make` declines. docs/decisions/0005 has what else was considered.

    Args:
      make: takes the error's text; returns an instance of a subclass of
        `jax.errors.JaxRuntimeError`, or None for JAX's own.
    """
    base: Any = jax.errors.JaxRuntimeError

    @functools.wraps(base.__new__)
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        text = args[0] if args else kwargs.get("msg")
        error = make(text) if cls is base and isinstance(text, str) else None
        return RuntimeError.__new__(cls, *args, **kwargs) if error is None else error

    base.__new__ = new
