"""Random scheduled modules whose collectives start early, executed with XLA's rules of memory.

The interpreter in this file, `execute`, writes in place where XLA does: an update writes into its
operand, and an output may have the memory of an argument. A collective reads its operand anywhere
between start and done, and its result is undefined until the done. Every allowed order has to give
the results of XLA's order.
"""

import random
from unittest import mock

import hlo_modules
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from jax_cxl._takeover.early import Early
from jax_cxl._takeover.hlo.module import Module
from jax_cxl._takeover.schedule import costs, memory, order

SHAPE, ARGUMENTS = "f32[4]{0}", 3
# (seconds of an instruction, seconds of a collective).
COSTS = (4e-6, 30e-6), (1e-3, 30e-6), (2e-4, 30e-6), (1e-3, 3e-3), (4e-6, 3e-3)


class Program:
    """A random module.

    Attributes:
      text: its text, scheduled.
      donated: output -> the argument whose memory it has.
    """

    def __init__(self, seed):
        self._draw = draw = random.Random(seed)
        self._lines = [f"p{i} = {SHAPE} parameter({i})" for i in range(ARGUMENTS)]
        self._lines.append("zero = s32[] constant(0)")
        self._values = [f"p{i}" for i in range(ARGUMENTS)]
        # Value -> the value that first had its memory.
        self._memory = {name: name for name in self._values}
        # Memory -> the number of the last line that reads its contents.
        self._read = dict.fromkeys(self._values, 0)
        self._started = []
        for i in range(40):
            draw.choice((self._add, self._add, self._update, self._tuple, self._start, self._done))(
                i
            )
        while self._started:
            self._done(99)
        outputs = [*draw.sample(self._values, 3), self._values[-1]]
        # A new value may have the memory of an argument that nobody reads after the value is made.
        self.donated = {}
        for output in outputs:
            # A collective writes its result from its start on. So `writer` is the start, not the
            # done.
            writer = self._memory[output].removeprefix("d")
            made = next(n for n, line in enumerate(self._lines) if line.startswith(f"{writer} "))
            free = [
                p
                for p in self._memory
                if p.startswith("p")
                and self._read[p] < made
                and p not in self.donated.values()
                and all(self._memory[o] != p for o in outputs)
            ]
            if free and not self._memory[output].startswith("p"):
                self.donated.setdefault(self._memory[output], free[0])
        parts = ", ".join([SHAPE] * len(outputs))
        self._lines.append(f"ROOT out = ({parts}) tuple({', '.join(outputs)})")
        body = "\n".join(self._lines)
        self.text = (
            f"HloModule m, is_scheduled=true\nadd {{ a = f32[] parameter(0)\n"
            f"b = f32[] parameter(1)\nROOT s = f32[] add(a, b) }}\nENTRY main {{\n{body}\n}}"
        )

    def _pick(self):
        value = self._draw.choice(self._values[-12:])
        self._read[self._memory[value]] = len(self._lines)
        return value

    def _make(self, name, line, memory=None):
        self._lines.append(line)
        self._values.append(name)
        self._memory[name] = memory or name
        self._read.setdefault(self._memory[name], 0)

    def _add(self, i):
        x, y = self._pick(), self._pick()
        after = ""
        if self._draw.random() < 0.1:
            made = [line.split(" ")[0] for line in self._lines if " add(" in line]
            after = f", control-predecessors={{{self._draw.choice(made)}}}" if made else ""
        self._make(f"a{i}", f"a{i} = {SHAPE} add({x}, {y}){after}")

    def _update(self, i):
        x, y = self._pick(), self._pick()
        memory = self._memory[x]
        busy = any(self._memory[operand] == memory for _, operand in self._started)
        if busy or memory == self._memory[y] or memory.startswith("p"):
            return
        self._lines.append(f"part{i} = f32[1]{{0}} slice({y}), slice={{[1:2]}}")
        self._lines.append(f"up{i} = {SHAPE} dynamic-update-slice({x}, part{i}, zero)")
        # This overwrites the memory, so later lines must not read values that were there.
        self._values = [v for v in self._values if self._memory[v] != memory] + [f"up{i}"]
        self._memory[f"up{i}"] = memory

    def _tuple(self, i):
        x, y = self._pick(), self._pick()
        self._lines.append(f"t{i} = ({SHAPE}, {SHAPE}) tuple({x}, {y})")
        index = self._draw.randrange(2)
        line = f"g{i} = {SHAPE} get-tuple-element(t{i}), index={index}"
        self._make(f"g{i}", line, self._memory[(x, y)[index]])

    def _start(self, i):
        x = self._pick()
        self._lines.append(f"r{i} = {SHAPE} all-reduce-start({x}), to_apply=add")
        self._started.append((f"r{i}", x))

    def _done(self, i):
        if self._started:
            start, operand = self._started.pop(self._draw.randrange(len(self._started)))
            self._read[self._memory[operand]] = len(self._lines)
            self._make(f"d{start}", f"d{start} = {SHAPE} all-reduce-done({start})")


def execute(instructions, donated, late):
    """Executes instructions, and returns the outputs.

    Args:
      instructions: (name, opcode, operands, index) in the order of execution.
      donated: result -> the argument whose memory it has.
      late: whether collectives read at their dones. Otherwise they read at their starts.
    """
    # Arguments are there before the first instruction.
    values = {f"p{i}": np.arange(4.0) + 10.0**i for i in range(ARGUMENTS)}
    read = {}

    def memory(name):
        return values[donated[name]] if name in donated else np.empty(4)

    for name, opcode, operands, index in instructions:
        given = [values.get(operand) for operand in operands]
        if opcode == "add":
            total = given[0] + given[1]
            values[name] = memory(name)
            values[name][:] = total
        elif opcode == "slice":
            values[name] = given[0][1:2].copy()
        elif opcode == "dynamic-update-slice":
            given[0][:1] = given[1]
            values[name] = given[0]
        elif opcode == "tuple":
            values[name] = given
        elif opcode == "get-tuple-element":
            values[name] = given[0][index]
        elif opcode == "all-reduce-start":
            read[name] = given[0], given[0].copy()
            values[name] = memory(f"d{name}")
            values[name][:] = np.nan
        elif opcode == "all-reduce-done":
            operand, early = read[operands[0]]
            values[name] = given[0]
            values[name][:] = 3 * (operand if late else early) + 1
    return [part.copy() for part in values["out"]]


def reordered(text):
    """Returns the instructions in XLA's order and with early starts, and how many starts moved."""
    data = hlo_modules.serialized(text)
    module = Module(data)
    entry = module.entry
    sequence = module.sequence(entry)
    before = listed(entry, sequence)
    early = Early(module)
    for number in sequence:
        start = entry.instruction(number)
        if start.opcode == "all-reduce-start":
            Early.bypass_barriers(entry, start)
            early.add(entry, start, "all-reduce", 2)
    positions = order.early(early.nodes(entry, sequence), 1 << 30)[0].positions
    after = listed(entry, [sequence[p] for p in positions])
    names = [i[0] for i in before]
    moved = sum(
        set(names[: names.index(s)]) != {i[0] for i in after[: after.index(x)]}
        for s, x in [(i[0], i) for i in after if i[1] == "all-reduce-start"]
    )
    return before, after, moved


def listed(computation, sequence):
    names = {number: computation.instruction(number).name for number in sequence}
    return [
        (
            names[number],
            instruction.opcode,
            tuple(names[operand] for operand in instruction.operands),
            instruction.proto.get(instruction.TUPLE_INDEX),
        )
        for number in sequence
        for instruction in [computation.instruction(number)]
    ]


def differs(seed):
    """Returns whether early starts change the results, and how many starts moved."""
    program = Program(seed)
    donated = program.donated
    launch, call = COSTS[seed % len(COSTS)]
    with mock.patch.multiple(costs, _LAUNCH=launch, _CALL=call):
        before, after, moved = reordered(program.text)
    expected = execute(before, donated, late=False)
    np.testing.assert_array_equal(expected, execute(before, donated, late=True))
    results = [execute(after, donated, late) for late in (False, True)]
    same = all(np.array_equal(expected, result) for result in results)
    return not same, moved


class MemoryTest(parameterized.TestCase):
    def test_results_are_those_of_xlas_order(self):
        moved = 0
        for seed in range(300):
            wrong, starts = differs(seed)
            self.assertFalse(wrong, f"seed {seed}")
            moved += starts
        self.assertGreater(moved, 300)

    @parameterized.parameters("writers", "results")
    @pytest.mark.sample(2)
    def test_ignored_memory_is_found(self, what):
        original = memory._joined

        def ignore(computation, instructions, own):
            if what == "results":
                return set()
            return original(computation, instructions, {each.id for each in instructions})

        with mock.patch.object(memory, "_joined", ignore):
            self.assertGreater(sum(differs(seed)[0] for seed in range(300)), 0)


if __name__ == "__main__":
    absltest.main()
