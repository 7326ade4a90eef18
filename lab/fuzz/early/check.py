"""Compares a module whose collectives start early with the same module in XLA's order."""

import dataclasses

from lab.fuzz.early import text
from lab.fuzz.early.replay import DONE, START, Replay
from lab.fuzz.early.text import Computation, Module
from lab.fuzz.early.values import Values

_ORDERED = ("infeed", "outfeed", "send", "recv", "rng-get-and-update-state")
# Bytes that the new order may use in addition to `limit`. Each start returns a token of 4 bytes,
# which `limit` does not count.
_TOKENS = 1 << 10
_COLLECTIVES = ("all-", "reduce-scatter", "collective-", "ragged-", "async-")


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of the comparison.

    Attributes:
      errors: descriptions of the faults.
      collectives: the starts and dones of the pool in the new order.
      moved: how many starts have other instructions before them than in XLA's order.
      delayed: how many instructions, other than starts and dones, come after an instruction that
        they precede in XLA's order.
      more: how many more bytes the new order uses at its peak.
      xla: number of errors that `Replay` finds in XLA's own order.
      buffers: how many more bytes XLA assigns to buffers in the new order; 0 if the program was not
        compiled that far.
    """

    errors: list[str] = dataclasses.field(default_factory=list)
    collectives: list[str] = dataclasses.field(default_factory=list)
    moved: int = 0
    delayed: int = 0
    more: int = 0
    xla: int = 0
    buffers: int = 0


def compare(before: str, after: str, limit: int) -> Result:
    """Compares the module in two orders.

    Args:
      before: the text of the module in XLA's order.
      after: the text of the module with early starts.
      limit: bytes by which the memory in use may grow.
    """
    old, new = text.module(before), text.module(after)
    errors, collectives, moved, delayed = _same(old, new), [], 0, 0
    if errors:
        return Result(errors)
    for name, computation in new.computations.items():
        errors += _misplaced(computation)
        errors += _swapped(old.computations[name], computation)
        collectives += [
            i.name for i in computation.instructions.values() if i.target in (START, DONE)
        ]
        m, d = _moved(old.computations[name], computation)
        moved, delayed = moved + m, delayed + d
    replays = [Replay(module) for module in (old, new)]
    # XLA may copy an array onto itself. Replay takes the copy for another value that overwrites the
    # first, and reports an error. XLA's own order has the same error, so it does not count.
    errors += [error for error in replays[1].errors if error not in replays[0].errors]
    more = replays[1].peak - replays[0].peak
    if more > limit + _TOKENS:
        errors.append(f"{more} bytes more are in use, {limit} are allowed")
    return Result(errors, collectives, moved, delayed, more, len(replays[0].errors))


def _same(old: Module, new: Module) -> list[str]:
    """Returns errors for everything in which the modules differ, with two exceptions.

    The order of instructions may differ, and an operand may be another view of the same values.
    """
    if old.donated != new.donated or list(old.computations) != list(new.computations):
        return ["the modules have other computations or donations"]
    values = Values(old), Values(new)
    errors = []
    for name, computation in new.computations.items():
        before = old.computations[name].instructions
        if set(before) != set(computation.instructions):
            errors.append(f"{name} has other instructions")
            continue
        for i in computation.instructions.values():
            j = before[i.name]
            same = [(k.opcode, k.shape, k.attributes, len(k.operands)) for k in (i, j)]
            if same[0] != same[1]:
                errors.append(f"{i.name} is another instruction")
            operands = zip(j.operands, i.operands, strict=True)
            if any(values[0].of(a) != values[1].of(b) for a, b in operands):
                errors.append(f"{i.name} has other operands")
    return errors


def _misplaced(computation: Computation) -> list[str]:
    """Returns errors for instructions before their operands, and for starts without a done."""
    errors, seen = [], set()
    started: dict[str, str] = {}
    for i in computation.instructions.values():
        errors += [
            f"{i.name} comes before {name}, which it needs"
            for name in (*i.operands, *i.control)
            if name not in seen
        ]
        seen.add(i.name)
        if i.target == START:
            started[i.name] = i.operands[0]
        elif i.target == DONE:
            start = computation.instructions[i.operands[1]].operands[0]
            if started.pop(start, "") != i.operands[0]:
                errors.append(f"{i.name} does not keep what {start} reads")
    return errors + [f"{start} has no done behind it" for start in started]


def _swapped(old: Computation, new: Computation) -> list[str]:
    """Returns an error if instructions with side effects, or XLA's collectives, changed order."""

    def ordered(computation: Computation) -> list[str]:
        return [
            i.name
            for i in computation.instructions.values()
            if (
                i.opcode.startswith((*_ORDERED, *_COLLECTIVES))
                or "custom_call_has_side_effect=true" in i.attributes
            )
            and i.target not in (START, DONE)
        ]

    before, after = ordered(old), ordered(new)
    return [f"{before} became {after}"] if before != after else []


def _moved(old: Computation, new: Computation) -> tuple[int, int]:
    names = list(old.instructions)
    place = {name: i for i, name in enumerate(names)}
    moved = delayed = most = 0
    seen: set[str] = set()
    for name, i in new.instructions.items():
        if i.target == START:
            moved += seen != set(names[: place[name]])
        elif i.target != DONE and i.opcode != "get-tuple-element":
            delayed += place[name] < most
            most = max(most, place[name])
        seen.add(name)
    return moved, delayed


def disagreements(here: str, there: str, names: dict[str, str]) -> list[str]:
    """Returns an error for each computation whose collectives two processes order differently.

    Args:
      here: the module's text in one process.
      there: the module's text in the other process.
      names: maps the name of each instruction in `there` to its name in `here`.
    """
    errors = []
    old, new = text.module(here), text.module(there)
    for name, computation in new.computations.items():
        order = [
            old_name
            for i in computation.instructions.values()
            if i.target in (START, DONE)
            for there_name, _, rest in [i.name.partition(".")]
            for old_name in [names[there_name] + "." * bool(rest) + rest]
        ]
        expected = [
            i.name
            for i in old.computations[name].instructions.values()
            if i.target in (START, DONE)
        ]
        if order != expected:
            errors.append(f"another process has the order {order}, this one has {expected}")
    return errors
