"""Programs as XLA's scheduler for GPUs orders them, and as jax_cxl's hook then changes them."""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
from jax.extend import xla

try:
    from jaxlib import _hlo
except ImportError:  # In JAX 0.12 it is a part of another module.
    from jaxlib import _jax as _hlo

from jax_cxl._job import lifecycle, platforms
from jax_cxl._takeover import hook
from jax_cxl._takeover.hlo.module import Instruction, Module
from jax_cxl._takeover.hlo.wire import Message
from jax_cxl._takeover.world import World
from lab.fuzz.early import assigned as assignment
from lab.fuzz.early.programs import Whole

_COMPUTATIONS, _SCHEDULE, _DEVICE_ASSIGNMENT = 3, 7, 15
_INSTRUCTIONS, _ROOT_ID = 2, 6
# The XLA of JAX before 0.11 does not call the hook when it compiles for absent GPUs.
_CALLS_HOOK = jax.__version_info__ >= (0, 11)


class _Found(Exception):
    """Ends a compilation, once the hook has the module that the test needs."""


@contextlib.contextmanager
def as_on_gpus(devices: list[jax.Device]) -> Iterator[None]:
    """Makes jax_cxl treat `devices` as the GPUs of its job, without a pool."""
    platform = next(platform for platform in platforms.ALL if platform.name == "cuda")
    ranks = {device.id: rank for rank, device in enumerate(devices)}
    runtime = SimpleNamespace(rank_of_device=ranks, platform=platform, generation=0)
    with (
        mock.patch.object(jax, "default_backend", lambda: "gpu"),
        mock.patch.object(lifecycle, "ensure_started", lambda: runtime),
        mock.patch.object(platforms, "of", lambda device: platform),
    ):
        yield


def scheduled(whole: Whole) -> bytes:
    """Returns a program as XLA's scheduler gives it to the hook.

    Raises:
      Exception: XLA does not compile it.
    """
    found: list[bytes] = []

    def keep(data: bytes) -> None:
        # XLA also compiles parts of the program by themselves, to choose among kernels. Skip these.
        if Module(data).name.startswith("jit_"):
            found.append(data)
            raise _Found

    stage = xla.PipelineStage.POST_SCHEDULER
    if _CALLS_HOOK:
        xla.register_hlo_module_transformation(keep, name="fuzz", stage=stage, platforms="cuda")
    try:
        lowered = jax.jit(whole.function, donate_argnums=whole.donated).lower(*whole.arguments)
        compiled = lowered.compile(compiler_options=whole.options)
    except Exception:
        if not found:
            raise
        return found[0]
    finally:
        if _CALLS_HOOK:
            xla.clear_hlo_module_transformation("fuzz", stage, "cuda")
    # The hook was not called, so take the compiled module. The passes that run after the hook
    # change little.
    (module,) = compiled.runtime_executable().hlo_modules()
    message = Message(module.as_serialized_hlo_module_proto())
    if not message.has(_DEVICE_ASSIGNMENT):
        ids = [device.id for device in whole.devices]
        assignment = Message().add(1, 1).add(2, len(ids))
        for device in ids:
            assignment.add(3, Message().set_integers(1, [device]))
        message.set(_DEVICE_ASSIGNMENT, assignment)
    return message.encode()


def assigned(whole: Whole, world: World, early_bytes: int | None) -> tuple[list[str], int]:
    """Compiles a program completely, with its collectives taken over, and checks its final order.

    `XLA_FLAGS` must make XLA dump modules into a folder (`assigned.flags`).

    Returns:
      The errors that `assigned.replayed` finds in XLA's dump, and the bytes of all buffers.
    """
    found = re.search(r"--xla_dump_to=(\S+)", os.environ["XLA_FLAGS"])
    assert found and _CALLS_HOOK, "XLA before JAX 0.11 calls no hook if it compiles for absent GPUs"
    folder = pathlib.Path(found[1])
    for file in folder.glob("*"):
        file.unlink()

    def take_over(data: bytes) -> bytes | None:
        if not Module(data).name.startswith("jit_"):
            return None
        return hook.transform(data, lambda: world, early_bytes=early_bytes)

    stage = xla.PipelineStage.POST_SCHEDULER
    xla.register_hlo_module_transformation(take_over, name="fuzz", stage=stage, platforms="cuda")
    try:
        jax.clear_caches()
        lowered = jax.jit(whole.function, donate_argnums=whole.donated).lower(*whole.arguments)
        lowered.compile(compiler_options=whole.options)
    finally:
        xla.clear_hlo_module_transformation("fuzz", stage, "cuda")
    return assignment.replayed(folder)


def taken_over(data: bytes, world: World, early_bytes: int | None) -> str | None:
    """Returns the text of the module `data` after the hook, or None if the hook changes nothing."""
    after = hook.transform(data, lambda: world, early_bytes=early_bytes)
    return (
        None
        if after is None
        else _hlo.HloModule.from_serialized_hlo_module_proto(after).to_string()
    )


def elsewhere(data: bytes, rng: np.random.Generator) -> tuple[bytes, dict[str, str]]:
    """Returns the module `data` as another process may have it, with other names and numbers.

    Also returns a dict that maps the new name of each instruction to its old name.
    """
    module, names = Message(data), {}
    number: dict[tuple[int, int], int] = {}
    out = Message()
    for field, kind, value in module.items():
        if field == _COMPUTATIONS:
            computation = Message(value)
            blobs = [Message(blob) for blob in computation.blobs(_INSTRUCTIONS)]
            ids = [blob.get(Instruction.ID) for blob in blobs]
            other = dict(zip(ids, rng.permutation(ids).tolist(), strict=True))
            number |= {(computation.get(5), old): new for old, new in other.items()}
            changed = Message()
            rest = iter(blobs)
            for f, k, v in computation.items():
                if f == _INSTRUCTIONS:
                    changed.add(f, _renamed(next(rest), other, names, rng))
                elif f == _ROOT_ID:
                    changed.add(f, other[computation.get(_ROOT_ID)])
                else:
                    changed.append(f, k, v)
            out.add(field, changed)
        elif field == _SCHEDULE:
            schedule = Message()
            for entry in Message(value).messages(1):
                ids = [number[entry.get(1), i] for i in Message(entry.blob(2)).integers(1)]
                schedule.add(
                    1, Message().add(1, entry.get(1)).add(2, Message().set_integers(1, ids))
                )
            out.add(field, schedule)
        else:
            out.append(field, kind, value)
    return out.encode(), names


def _renamed(proto: Message, other: dict[int, int], names: dict, rng) -> Message:
    name = f"n{rng.integers(1 << 40)}"
    names[name] = proto.text(Instruction.NAME)
    proto.set(Instruction.NAME, name).clear(Instruction.METADATA)
    proto.set(Instruction.ID, other[proto.get(Instruction.ID)])
    for field in (Instruction.OPERANDS, Instruction.CONTROL_PREDECESSORS):
        if proto.has(field):
            proto.set_integers(field, [other[i] for i in proto.integers(field)])
    return proto
