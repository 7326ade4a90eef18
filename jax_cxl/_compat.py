"""What this package takes from JAX's private modules.

The collectives need two things that JAX does not export: the effect that ties an equation to a
named axis, and whether `jax.shard_map` runs with `check_vma`. The classes of primitives, variables
and literals come from here too, because `jax.extend`, which exports them, imports Pallas: that
took a third of the time of importing jax_cxl. The runtime needs the key-value store of
`jax.distributed`, and the name of the event that ends a compilation. The compiler hook needs the
key of the persistent compilation cache. Snapshots need the constructor of arrays, the function
that puts arrays on devices, and the parts of arrays on devices. Residuals that are offloaded need
the rules by which `jax.checkpoint` splits functions. They have kept their names since JAX 0.10.

Four other places follow JAX or XLA, and may need a change for a new version:

* `_job/launched/detect.py` adds cluster environments to `jax._src.clusters`, when JAX imports them;
* `_commands/launch/coordinator.py` starts the coordination service of `jaxlib._jax`;
* `_takeover/hlo/module.py` has the field numbers of XLA's protocol buffers;
* `_takeover/config.py` writes attributes as MLIR prints them.
"""

import ctypes
import functools
import hashlib
import logging
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

try:
    from jax._src import (
        cache_key as _cache_key,
        config as _config,
        distributed as _distributed,
        source_info_util as _source_info_util,
        xla_bridge as _xla_bridge,
    )
    from jax._src.ad_checkpoint import name_p as _name_p
    from jax._src.core import Literal, NamedAxisEffect, Primitive, Var
    from jax._src.dispatch import BACKEND_COMPILE_EVENT
    from jax._src.interpreters import partial_eval as _partial_eval, pxla as _pxla
    from jax._src.lib import xla_client as _xla_client

    # Fail at import, not in the first call.
    _cache_key.get  # noqa: B018
    _config._check_vma.value  # noqa: B018
    _distributed.global_state.client  # noqa: B018
    _xla_bridge.backends, _xla_bridge.backends_are_initialized  # noqa: B018
    _source_info_util.is_user_filename, _source_info_util.user_frames  # noqa: B018
    _xla_client.Client.deserialize_executable  # noqa: B018
    _pxla.batched_device_put  # noqa: B018
    _partial_eval.partial_eval_jaxpr_custom_rules, _partial_eval.Saveable  # noqa: B018
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"jax_cxl does not work with jax {jax.__version__}: {error}. It is tested with jax 0.10"
        " to 0.12: install one of these, or a newer jax_cxl."
    ) from error

_HERE = os.path.dirname(__file__) + os.sep

# How long processes wait for each other at start-up, in milliseconds. This is long enough for a
# process that compiles or loads data before it first communicates.
MEETING_TIMEOUT_MS = 300_000

__all__ = [
    "BACKEND_COMPILE_EVENT",
    "MEETING_TIMEOUT_MS",
    "Literal",
    "NamedAxisEffect",
    "Primitive",
    "Var",
    "around_loading",
    "array_like",
    "arrays_of_devices",
    "backends",
    "before_compilation",
    "check_vma",
    "checkpoint_name_of",
    "coordination_client",
    "extend_cache_key",
    "forbidden_axes",
    "forget_topology",
    "has_backend",
    "hosts_service",
    "is_own_file",
    "is_saveable",
    "jitted_function_type",
    "key_value",
    "leave_without_barrier",
    "make_runtime_errors",
    "process_count",
    "process_id",
    "put",
    "refuses_other_orders_of_axes",
    "register_checkpoint_rule",
    "register_compiler_hook",
    "running_frames",
    "sorts_axes_of_ppermute",
    "user_frames",
]


def check_vma() -> bool:
    """Whether the function being traced runs under `shard_map(check_vma=True)`."""
    return _config._check_vma.value


def checkpoint_name_of(eqn: Any) -> str | None:
    """Returns the name that `checkpoint_name` gives to the result of an equation, None if none."""
    return eqn.params["name"] if eqn.primitive is _name_p else None


def register_checkpoint_rule(primitive: Any, rule: Callable[..., Any]) -> None:
    """Sets how `jax.checkpoint` splits an equation into a forward and a backward pass.

    Args:
      primitive: the primitive of the equation.
      rule: takes the policy, two lists of bools (which operands the forward pass lacks, which the
        backward pass has) and the equation. Returns the equation of each pass or None, the same
        two lists for results, and the variables that the forward pass keeps for the backward pass.
    """
    _partial_eval.partial_eval_jaxpr_custom_rules[primitive] = rule


def is_saveable(decision: Any) -> bool:
    """Whether a policy of `jax.checkpoint` keeps a value on the device."""
    return decision is True or isinstance(decision, type(_partial_eval.Saveable))


def forbidden_axes() -> tuple:
    """Returns the axes over which `no_collectives` (absent in JAX 0.10) forbids communication."""
    state = getattr(_config, "no_collectives", None)
    return tuple(state.value or ()) if state is not None else ()


def sorts_axes_of_ppermute() -> bool:
    """Whether `jax.lax.ppermute` counts ranks in the mesh's order, not in that of `axis_name`.

    JAX 0.10 does. Later versions count ranks in the order of the given axes. They refuse an order
    that differs from the order of the mesh, unless `jax_raise_on_ppermute_sort_diff` is off.
    """
    return not hasattr(_config, "raise_on_ppermute_sort_diff")


def refuses_other_orders_of_axes() -> bool:
    """Whether `jax.lax.ppermute` refuses axes that are not in the order of the mesh."""
    option = getattr(_config, "raise_on_ppermute_sort_diff", None)
    return option is not None and bool(option.value)


def backends() -> Iterable[str]:
    """Returns the names of JAX's backends, which this call may create.

    `jax.extend.backend` has this function too, but it imports Pallas.
    """
    names: Iterable[str] = _xla_bridge.backends()
    return names


def has_backend() -> bool:
    """Returns whether JAX has made its devices. After that, it connects to no other process."""
    return _xla_bridge.backends_are_initialized()


def coordination_client() -> Any:
    """The client of JAX's coordination service; None without `jax.distributed`."""
    return _distributed.global_state.client


def process_id() -> int:
    """The number of this process in `jax.distributed`. Unlike `jax.process_index`, it makes no
    backend.
    """
    return _distributed.global_state.process_id


def process_count() -> int:
    """The number of processes in `jax.distributed`. Unlike `jax.process_count`, it makes no
    backend.
    """
    return _distributed.global_state.num_processes or 1


def key_value(key: str, milliseconds: int = 0) -> str | None:
    """Returns the value of a key in the coordination service, None if the key has none.

    Args:
      key: its name.
      milliseconds: for how long to wait for a value.
    """
    client = coordination_client()
    try:
        if milliseconds:
            return client.blocking_key_value_get(key, milliseconds)
        return client.key_value_try_get(key)
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" in str(error) or "DEADLINE_EXCEEDED" in str(error):
            return None
        raise


def hosts_service() -> bool:
    """Whether this process hosts the coordination service."""
    return _distributed.global_state.service is not None


def leave_without_barrier() -> None:
    """Lets the program end without JAX's barrier at exit, after a process has died.

    At that barrier JAX waits for all processes. If a process does not arrive, JAX aborts this one.
    """
    state: Any = _distributed.global_state
    for held in (state.client, state.service):
        # The destructor would also wait at the barrier, so keep the object alive.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    state.client = state.service = state.preemption_sync_manager = None


def forget_topology() -> None:
    """Deletes the list of all devices from the coordination service.

    A restarted process 0 publishes this list again, and XLA does not overwrite the list of the
    first process 0. The other processes have read the list, and do not read it again.
    """
    coordination_client().key_value_delete("cpu:global_topology/cpu")


def is_own_file(file: str) -> bool:
    """Whether a source file belongs to this package."""
    return file.startswith(_HERE)


def user_frames(ctx: Any) -> Any:
    """Returns the frames outside JAX that led to the equation being lowered, innermost first."""
    return _source_info_util.user_frames(ctx.traceback)


def running_frames() -> Iterator[tuple[str, int, str]]:
    """Yields file, line and function of each frame of this thread outside JAX, innermost first."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if _source_info_util.is_user_filename(code.co_filename):
            yield code.co_filename, frame.f_lineno, code.co_name
        frame = frame.f_back


def register_compiler_hook(platform: str, hook: Callable[[bytes], bytes | None]) -> None:
    """Registers a hook for each module that XLA compiles for a platform, after partitioning.

    Args:
      platform: "cpu" or "gpu"; its backend must be there.
      hook: takes a serialized HloModuleProto; returns another, or None to keep it.
    """
    try:
        # `jax.extend.xla` exports this module, but `jax.extend` imports Pallas.
        from jax._src import xla_transform as xla
    except ImportError as error:
        raise ImportError(
            f"jax_cxl needs a hook in XLA's compiler that jax {jax.__version__} does not have:"
            f" {error}. Install jax 0.10.2 or newer."
        ) from error
    # On CPUs the hook runs before the scheduler, because XLA would drop instructions that the hook
    # adds to a scheduled module. On GPUs it runs after the scheduler, which has placed starts and
    # dones so that collectives overlap with other work.
    stage = (
        xla.PipelineStage.PRE_SCHEDULER if platform == "cpu" else xla.PipelineStage.POST_SCHEDULER
    )
    xla.register_hlo_module_transformation(
        hook, name="jax_cxl", stage=stage, platforms="cpu" if platform == "cpu" else "cuda"
    )


def extend_cache_key(part: Callable[[list[int]], str]) -> None:
    """Extends the keys of the persistent compilation cache.

    Args:
      part: returns the addition to the key of a program, "" for none, from the ids of the program's
        devices in the program's order. On GPUs JAX's own key does not have this order.
    """
    other = _cache_key.get

    @functools.wraps(other)
    def get(module: Any, devices: Any, *arguments: Any, **options: Any) -> str:
        key: str = other(module, devices, *arguments, **options)
        addition = part([device.id for device in devices.flat])
        if not addition:
            return key
        return f"{key}-{hashlib.sha256(addition.encode()).hexdigest()[:32]}"

    _cache_key.get = get


def around_loading(
    load: Callable[[bytes, Sequence[int] | None, Callable[[], Any]], Any],
) -> None:
    """Lets `load` load serialized programs, from files or from the persistent compilation cache.

    Args:
      load: takes the serialized program, the ids of the devices for which it is loaded in the
        program's order (None if JAX does not say), and a function that loads it.
    """
    client: Any = _xla_client.Client
    other = client.deserialize_executable

    @functools.wraps(other)
    def deserialize(self: Any, serialized: bytes, *arguments: Any, **options: Any) -> Any:
        devices = options.get("executable_devices", arguments[0] if arguments else None)
        ids = None if devices is None else [device.id for device in devices]
        return load(serialized, ids, lambda: other(self, serialized, *arguments, **options))

    client.deserialize_executable = deserialize


# JAX records this event when it has lowered a program. The thread that records it then compiles
# the program.
_LOWERED_EVENT = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_before_compilation: list[Callable[[], None]] = []


def before_compilation(prepare: Callable[[], None]) -> None:
    """Calls `prepare` before each compilation, in the thread that compiles. Devices exist by then.

    This function may be called at any time, even while JAX makes its backends.
    """
    if not _before_compilation:
        jax.monitoring.register_event_duration_secs_listener(_on_duration)
    if prepare not in _before_compilation:
        _before_compilation.append(prepare)


def _on_duration(event: str, duration_secs: float, **_: str | int) -> None:
    if event == _LOWERED_EVENT:
        for prepare in _before_compilation:
            prepare()


def jitted_function_type() -> Any:
    """Returns the type of the functions that `jax.jit` returns."""
    return type(jax.jit(lambda: None))


def make_runtime_errors(make: Callable[[str], BaseException | None]) -> None:
    """Lets `make` choose the exception in place of JAX's `jax.errors.JaxRuntimeError`.

    XLA's errors become Python exceptions in native code, at many places: dispatch,
    `block_until_ready`, `np.asarray`, `jax.device_get`. All of these places instantiate
    JaxRuntimeError. This function replaces the `__new__` of the class, which may return an instance
    of a subclass; Python then raises that instance. Where `make` returns None, the class behaves as
    before. docs/decisions/0005 explains the alternatives.

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


def watch_callbacks(notify: Callable[[BaseException], None]) -> None:
    """Lets `notify` know of exceptions in host callbacks, such as those of `jax.pure_callback`.

    JAX logs these exceptions in the thread that runs the callback, before it passes them to XLA.
    """

    def on_record(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            notify(record.exc_info[1])
        return True

    for name in ("jax._src.callback", "jax._src.debugging"):
        logging.getLogger(name).addFilter(on_record)


def starts_program_over_processes() -> bool:
    """Returns whether a thread is inside JAX's start of a program over several processes.

    JAX starts programs with host callbacks in Python, and others in native code.
    """
    for frame in sys._current_frames().values():
        inner: types.FrameType | None = frame
        while inner is not None:
            if inner.f_code.co_qualname == "ExecuteReplicated.__call__":
                program = inner.f_locals["self"]
                shardings = (
                    *program.in_handler.in_shardings,
                    *program.out_handler.out_shardings,
                )
                if not all(sharding.is_fully_addressable for sharding in shardings):
                    return True
            inner = inner.f_back
    return False


def array_like(array: jax.Array, weak_type: bool, committed: bool) -> jax.Array:
    """Returns an array with the same buffers that is weakly typed, or not committed to its device.

    Args:
      array: JAX array, not of keys.
      weak_type: whether JAX promotes it like a Python number.
      committed: whether JAX keeps it on its devices.
    """
    held: Any = array
    if (held.weak_type, held.committed) == (weak_type, committed):
        return array
    # An array on one device is its own shard.
    one = len(held.sharding.device_set) == 1 and held.is_fully_addressable
    shards = [held] if one else [shard.data for shard in held.addressable_shards]
    aval = held.aval if held.weak_type == weak_type else held.aval.update(weak_type=weak_type)
    made: jax.Array = type(held)(
        aval, held.sharding, shards, committed=committed, _skip_checks=True
    )
    return made


def arrays_of_devices(array: jax.Array) -> Sequence[jax.Array]:
    """Returns the parts of an array on this process's devices, in the order of
    `addressable_shards`, which also describes them and takes twice as long.
    """
    held: Any = array
    parts: Sequence[jax.Array] = held._arrays
    return parts


def put(
    aval: Any,
    sharding: jax.sharding.Sharding,
    parts: Sequence[np.ndarray],
    devices: Sequence[jax.Device],
    committed: bool,
) -> jax.Array:
    """Puts an array on devices. `jax.device_put` takes five times as long for a small array.

    Args:
      aval: its abstract value.
      sharding: its sharding.
      parts: the parts for the devices of this process, whose dtype JAX has. They do not change
        afterwards: on CPUs the result may use their memory.
      devices: these devices.
      committed: whether JAX keeps the array on its devices.
    """
    made: jax.Array = _pxla.batched_device_put(aval, sharding, parts, devices, committed)
    return made
