"""When JAX compiles or loads a program, the hook in XLA's compiler, and the compilation cache."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from jax._src import cache_key as _cache_key, compiler as _compiler
from jax._src.lib import xla_client as _xla_client

_cache_key.get, _xla_client.Client.deserialize_executable  # noqa: B018
_compiler.compile_or_get_cached, _xla_client.LoadedExecutable.fingerprint  # noqa: B018


def register_compiler_hook(platform: str, hook: Callable[[bytes], bytes | None]) -> None:
    """Lets XLA call a hook with each module that it compiles for a platform, after partitioning.

    The platform is "cpu" or "gpu", and its backend exists. The hook takes a serialized
    HloModuleProto. It returns another to use instead, or None to keep it.
    """
    # `jax.extend.xla` exports this module, but `jax.extend` imports Pallas.
    from jax._src import xla_transform as xla

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

    `part` takes the ids of a program's devices, in the program's order, which JAX's own key does
    not contain on GPUs. It returns the addition to the key, "" for none.
    """
    other = _cache_key.get

    @functools.wraps(other)
    def get(module: Any, devices: Any, *arguments: Any, **options: Any) -> str:
        key = other(module, devices, *arguments, **options)
        addition = part([device.id for device in devices.flat])
        if not addition:
            return key
        return f"{key}-{hashlib.sha256(addition.encode()).hexdigest()[:32]}"

    _cache_key.get = get


@dataclasses.dataclass
class Compilation:
    """A program that JAX compiles, or takes from its persistent cache.

    `devices` has the ids of its devices, in the program's order. `platform` is "cpu" or "gpu".
    """

    module: Any
    devices: list[int]
    platform: str
    options: Any

    def count_equal_programs_together(self) -> None:
        """Lets JAX count the launches of equal programs together, on CPUs.

        JAX counts launches by a hash of XLA's text of the compiled program. By default this text
        contains the lines from which the program was called, which may differ between equal
        programs. This option leaves them out. The text also contains names of operations.
        """
        self.options.executable_build_options.debug_options.xla_dump_disable_metadata = True

    def text(self) -> str:
        """Returns a text of the program and of the options that the user gave, without lines.

        JAX counts the launches of programs with equal texts together, if XLA has equal settings.
        """
        module, located = (
            self.module.operation.get_asm(enable_debug_info=debug, large_elements_limit=None)
            for debug in (False, True)
        )
        # XLA names an instruction by the last part of its operation's name.
        names = dict(re.findall(r'^(#loc\d+) = loc\("(?:.*/)?(.*?)"[()]', located, re.M))
        used = [names.get(of) for of in re.findall(r" loc\((#loc\d*)\)$", located, re.M)]
        return f"{self.options.env_option_overrides} {used} {module}"


def around_compilation(
    compile_program: Callable[[Compilation, Callable[[], Any]], Any],
) -> None:
    """Calls `compile_program` whenever JAX compiles a program or takes it from its cache.

    It takes the program, and JAX's own function, bound to its arguments. It returns the loaded
    program.
    """
    compiler: Any = _compiler
    other = compiler.compile_or_get_cached

    @functools.wraps(other)
    def compile_or_get_cached(
        backend: Any, module: Any, devices: Any, options: Any, *arguments: Any, **others: Any
    ) -> Any:
        ids = [device.id for device in devices.flat]
        return compile_program(
            Compilation(module, ids, backend.platform, options),
            lambda: other(backend, module, devices, options, *arguments, **others),
        )

    compiler.compile_or_get_cached = compile_or_get_cached


def around_loading(
    load: Callable[[bytes, Sequence[int] | None, Callable[[], Any]], Any],
) -> None:
    """Calls `load` whenever JAX loads a serialized program, in place of JAX's own function.

    The program comes from a file or from the persistent compilation cache. `load` takes it, the ids
    of the devices for which it is loaded, and JAX's own function, bound to these arguments. It
    returns the loaded program. The ids are None if JAX does not give them.
    """
    client: Any = _xla_client.Client
    other = client.deserialize_executable

    @functools.wraps(other)
    def deserialize(self: Any, serialized: bytes, *arguments: Any, **options: Any) -> Any:
        devices = options.get("executable_devices", arguments[0] if arguments else None)
        ids = None if devices is None else [device.id for device in devices]
        return load(serialized, ids, lambda: other(self, serialized, *arguments, **options))

    client.deserialize_executable = deserialize
