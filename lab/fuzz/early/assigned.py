"""Executes the final order of a program on the buffers that XLA has assigned to its values.

`replay.py` derives from XLA's rules which values share memory. This module reads from XLA's dump
where each value is, so it also finds values that XLA overwrites because it reuses their memory.
"""

import pathlib
import re

from lab.fuzz.early import text
from lab.fuzz.early.replay import Replay
from lab.fuzz.early.text import Module, Shape
from lab.fuzz.early.values import Value, branches

# Where a value is: the number of its allocation, and the offsets there at which it begins and ends.
Place = tuple[int, int, int]

_NAME = "*jit_*gpu_after_optimizations"
_VALUE = re.compile(r" value: <\d+ ([\w.-]+?)(?:\{([\d,]*)\})? @\d+> \(size=(\d+),offset=(\d+)\)")
# An element of a tuple, as XLA's dump writes it.
_ELEMENT = re.compile(r"%([\w.-]+?)#(\d+)")


def flags(folder: pathlib.Path) -> str:
    """Returns the flags by which XLA writes its dump into a folder."""
    return f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=jit_.*"


def replayed(folder: pathlib.Path) -> tuple[list[str], int]:
    """Executes the program that XLA has dumped into `folder`, in its final order.

    Returns:
      A text for each read of an overwritten value, and the bytes of all buffers together.
    """
    (module,) = folder.glob(f"{_NAME}.txt")
    (assignment,) = folder.glob(f"{_NAME}-buffer-assignment.txt")
    (values,) = folder.glob(f"{_NAME}-buffer-assignment-values.txt")
    total = re.search(r"Total bytes used: (\d+)", values.read_text())
    assert total
    places = _places(assignment.read_text())
    replay = _Assigned(text.module(_with_elements(module.read_text())), places)
    return replay.errors, int(total[1])


class _Assigned(Replay):
    def __init__(self, module: Module, places: dict[Value, Place]) -> None:
        self._places, self._alive = places, set[Value]()
        in_allocation: dict[int, list[Value]] = {}
        for value, place in places.items():
            in_allocation.setdefault(place[0], []).append(value)
        # For each value, the other values whose memory overlaps its own.
        self._beside = {
            value: [
                v
                for v in in_allocation[allocation]
                if v != value and places[v][1] < end and first < places[v][2]
            ]
            for value, (allocation, first, end) in places.items()
        }
        super().__init__(module)

    def _hold(self, written: list[Value], now: str) -> None:
        for value in written:
            self._alive.difference_update(self._beside.get(value, ()))
        self._alive.update(written)
        self._touch(written, now)

    def _expect(self, read: list[Value], reader: str) -> None:
        self.errors += [
            f"{reader} reads {value}, which has been overwritten"
            for value in read
            if value in self._places and value not in self._alive
        ]
        self._touch(read, reader)

    def _branch(self, i: text.Instruction) -> None:
        before, after = self._alive, []
        for branch in branches(i):
            self._alive = set(before)
            computation = self._module.computations[branch]
            self._run(computation)
            self._expect(self._values.of(computation.root), f"the end of {branch}")
            after.append(self._alive)
        self._alive = set.intersection(*after)


def _places(dump: str) -> dict[Value, Place]:
    places, allocation = {}, 0
    for line in dump.splitlines():
        if found := re.match(r"allocation (\d+):", line):
            allocation = int(found[1])
        elif found := _VALUE.match(line):
            index = tuple(int(part) for part in (found[2] or "").split(",") if part)
            first = int(found[4])
            places[found[1], index] = allocation, first, first + int(found[3])
    return places


def _with_elements(dump: str) -> str:
    """Returns the text of the module with a get-tuple-element for each `%tuple#index` in it."""
    lines: list[str] = []
    shapes: dict[str, Shape] = {}
    seen: set[str] = set()
    for line in dump.splitlines():
        while found := _ELEMENT.search(line):
            whole, index = found[1], int(found[2])
            name = f"{whole}__{index}"
            if name not in seen:
                seen.add(name)
                shapes[name] = shapes[whole][index]
                shape = _written(shapes[name])
                lines.append(f"  %{name} = {shape} get-tuple-element(%{whole}), index={index}")
            line = line[: found.start()] + f"%{name}" + line[found.end() :]
        instruction = text.instruction(line)
        if instruction is not None:
            shapes[instruction.name] = instruction.shape
        lines.append(line)
    return "\n".join(lines)


def _written(shape: Shape) -> str:
    if isinstance(shape, list):
        return f"({', '.join(map(_written, shape))})"
    return f"{shape[0]}[{shape[1]}]"
