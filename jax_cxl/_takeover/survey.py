"""Lists, for each program that XLA compiles, which collectives go through the pool, and why.

`jax_cxl.explain` returns the list for a function. `JAX_CXL_LOG=info` prints it for each program.
"""

import dataclasses
import logging
import re
from collections.abc import Callable

import jax

from jax_cxl import _text
from jax_cxl._job import lowered_programs, setting
from jax_cxl._lowering import contract
from jax_cxl._takeover import find, match
from jax_cxl._takeover.hlo.module import Instruction, Module
from jax_cxl._takeover.hook import Decisions
from jax_cxl._takeover.match import NotTakenError
from jax_cxl._takeover.world import World

POOL, XLA = "pool", "XLA"
_OURS = tuple(target.encode() for target in contract.CALL_TARGETS)
_OFF = "jax_cxl.replace_collectives is off: JAX_CXL_REPLACE_COLLECTIVES=1 sends it through the pool"
_IN_LEVELS = "; in levels"
_COLUMNS = ("collective", "result", "ranks", "source line", "goes through", "why")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of a compiled program.

    Attributes:
      name: "psum" for a function of jax_cxl, "all-reduce" for a collective of XLA.
      result: dtypes and shapes of its results on a device, such as "float32[8,4]".
      ranks: number of devices of each of its groups.
      line: its line in the user's program, "" if that is not known.
      through: "pool" or "XLA".
      why: the reason.
    """

    name: str
    result: str
    ranks: int
    line: str
    through: str
    why: str


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program and its collectives.

    Attributes:
      name: its name in XLA, such as "jit_step".
      collectives: in the order of the program.
    """

    name: str
    collectives: tuple[Collective, ...]

    def __str__(self) -> str:
        pool = sum(each.through == POOL for each in self.collectives)
        head = f"{self.name}: {pool} of {len(self.collectives)} collectives go through the pool"
        rows = [
            (of.name, _few(of.result), str(of.ranks), of.line or "-", of.through, of.why)
            for of in self.collectives
        ]
        lines = _text.table([_COLUMNS, *rows]) if rows else []
        return "\n  ".join([head, *lines])


# Functions that get each program that this process compiles. Any thread may change the list.
listeners: list[Callable[[Program], None]] = []

# Part of the keys of JAX's caches, so that JAX always compiles a program that is explained.
request = jax.make_user_context("")


def _few(result: str) -> str:
    """Returns a result as a table shows it: of many arrays only the first."""
    first, *others = result.split(", ")
    return result if len(others) < 2 else f"{first} and {len(others)} more"


def cache_key() -> str:
    """Returns the part of the key in the persistent cache that marks explained programs."""
    asked = request.value
    return f" explain {asked}" if asked else ""


def log(program: Program) -> None:
    """Prints a program that has collectives."""
    if program.collectives:
        logging.getLogger("jax_cxl").info("%s", program)


def tell(data: bytes, world: World, how: setting.Setting | None, decisions: Decisions) -> None:
    """Passes a program, the serialized module that XLA gave to the hook, to the listeners."""
    program = of_module(data, world, how, decisions)
    for listener in listeners.copy():
        listener(program)


def of_module(
    data: bytes, world: World, how: setting.Setting | None, decisions: Decisions
) -> Program:
    """Returns the collectives of a module, and what the hook decides about each."""
    module = Module(data)
    rows = {}
    for found in find.collectives(module):
        line = module.source_line(found.instruction, lowered_programs.is_own_file)
        place = module.place(found.computation, found.outer)
        rows[place] = _theirs(module, found, world, how, decisions, line)
    for computation, instruction in module.with_any(_OURS):
        if instruction.proto.text(Instruction.TARGET).encode() in _OURS:
            line = module.source_line(instruction, lowered_programs.is_own_file)
            rows[module.place(computation, instruction)] = _ours(instruction, line)
    return Program(module.name, tuple(rows[place] for place in sorted(rows)))


def _ours(instruction: Instruction, line: str) -> Collective:
    config = instruction.proto.text(Instruction.BACKEND_CONFIG)
    name = re.search(r'\bname = "([^"]*)"', config)
    size = re.search(r"\bgroup_size = (\d+)", config)
    function = name[1] if name else "barrier"
    why = f"the program calls jax_cxl.{function}, or its derivative does"
    if re.search(r"\bprocesses = [1-9]", config):
        why += _IN_LEVELS
    return Collective(function, _result(instruction), int(size[1]) if size else 0, line, POOL, why)


def _theirs(
    module: Module,
    found: find.Found,
    world: World,
    how: setting.Setting | None,
    decisions: Decisions,
    line: str,
) -> Collective:
    through, ranks = XLA, 0
    try:
        groups = match.devices(module, found)
        ranks = max(map(len, groups), default=0)
        why = world._replace(local=how is not None and how.local).why_not(groups)
        why = why or (_OFF if how is None else decisions.left.get(found.outer.name, ""))
        if not why:
            if found.opcode == "collective-permute":
                ranks = len(match.collective(module, found).groups[0])
            through, why = POOL, "jax_cxl.replace_collectives has taken it over"
            if found.outer.name in decisions.in_levels:
                why += _IN_LEVELS
    except NotTakenError as reason:
        why = str(reason)
    return Collective(found.opcode, _result(found.outer), ranks, line, through, why)


def _result(instruction: Instruction) -> str:
    return ", ".join(
        f"{shape.dtype}[{','.join(map(str, shape.dimensions))}]"
        for shape in instruction.shapes
        if shape.dtype
    )
