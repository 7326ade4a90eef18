"""The hook in XLA's compiler. It replaces collectives, and numbers the calls of each program.

Each process compiles for itself, but the hooks of all processes have to decide alike. So a decision
depends only on the module, and on settings that are equal in all processes.
"""

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from jax_cxl import _core, errors
from jax_cxl._job import lowered_programs
from jax_cxl._takeover import config, entry_layout, find, match, rewrite
from jax_cxl._takeover.hlo.module import Instruction, Module
from jax_cxl._takeover.match import NotTakenError
from jax_cxl._takeover.world import World

if TYPE_CHECKING:
    from jax_cxl._takeover.early import Early

# The beginning of the error of the strict mode.
STRICT = "jax_cxl.replace_collectives(strict=True):"
_OURS = b"jax_cxl_"
_log = logging.getLogger("jax_cxl")
_lock = threading.Lock()
_said: set[str] = set()


@dataclasses.dataclass(frozen=True)
class Decisions:
    """The decisions about one program, for `jax_cxl.explain`.

    Attributes:
      left: why collectives that were candidates for the pool stay with XLA, by the names of their
        instructions.
      in_levels: the names of those that were taken over and run in levels (docs/levels.md).
    """

    left: dict[str, str] = dataclasses.field(default_factory=dict)
    in_levels: set[str] = dataclasses.field(default_factory=set)


def transform(
    data: bytes,
    world: Callable[[], World],
    strict: bool = False,
    decisions: Decisions | None = None,
    early_bytes: int | None = None,
) -> bytes | None:
    """Returns the module with its collectives replaced, None if nothing has to change.

    Args:
      data: a serialized HloModuleProto, after partitioning.
      world: called only if the module has collectives.
      strict: whether a collective that cannot be taken over is an error.
      decisions: receives the decision about each collective that is a candidate for the pool.
      early_bytes: as in `Setting`.
    """
    if not any(text in data for text in find.TEXTS):
        return None
    module = Module(data)
    decisions = Decisions() if decisions is None else decisions
    world = functools.cache(world)
    taken = 0
    obstacle = entry_layout.obstacle(module)
    early = None
    if module.is_scheduled and early_bytes is not None:
        # Modules for CPUs are not scheduled yet, so they do not need this import. Programs start
        # sooner without it.
        from jax_cxl._takeover.early import Early

        early = Early(module)
    for found in find.collectives(module):
        taken += _exchange(module, found, world(), strict, decisions, early, obstacle)
    # JAX 0.10.2 drops the donation of arguments when a hook changes a module. So a module in which
    # nothing was taken over stays as it is. Its calls get no numbers, and ranks match them by their
    # order instead.
    if taken == 0:
        return None
    if early is not None:
        assert early_bytes is not None
        early.move(early_bytes)
    _number(module)
    entry_layout.keep(module)
    return module.encode()


def _exchange(
    module: Module,
    found: find.Found,
    world: World,
    strict: bool,
    decisions: Decisions,
    early: "Early | None",
    obstacle: str,
) -> bool:
    """Takes over one collective. Returns whether it was taken over."""
    computation, old = found.computation, found.outer
    try:
        if world.why_not(match.devices(module, found)):
            return False
        if obstacle:
            raise NotTakenError(obstacle)
        collective = match.collective(module, found)
        if early is not None and found.starts:
            early.bypass_barriers(computation, old)
        in_levels = rewrite.rewrite(module, found, collective, world)
    except NotTakenError as reason:
        _left(module, found, str(reason), strict)
        decisions.left[old.name] = str(reason)
        return False
    if early is not None and found.starts:
        early.add(computation, old, found.opcode, len(collective.groups[0]))
    if in_levels:
        decisions.in_levels.add(old.name)
    for computation_id in found.inside:
        module.drop(computation_id)
    with _lock:
        lowered_programs.taken[found.opcode] += 1
    return True


def _left(module: Module, found: find.Found, reason: str, strict: bool) -> None:
    line = module.source_line(found.instruction)
    place = f"{module.name} at {line}" if line else module.name
    text = f"{found.instruction.opcode} in {place} does not go through the pool: {reason}."
    if strict:
        raise errors.InvalidCollectiveError(f"{STRICT} {text}")
    with _lock:
        lowered_programs.left[reason] += 1
        if text in _said:
            return
        _said.add(text)
    _log.warning("%s XLA executes it itself.", text)


def _number(module: Module) -> None:
    """Numbers the calls of the module, new and old ones."""
    site = 0
    for computation, call in module.with_any((_OURS,)):
        attributes = call.proto.text(Instruction.BACKEND_CONFIG)
        if config.is_new(attributes):
            line = module.source_line(call, lowered_programs.is_own_file)
            # The line is no attribute, because equal programs have to have equal attributes.
            _core.PROGRAMS.note_numbered_line(module.name, site, line)
            attributes = config.numbered(attributes, site)
            call.proto.set(Instruction.BACKEND_CONFIG, attributes)
            computation.touch(call)
            site += 1
