"""Executes the order of a module on its memory, and reports reads that get a wrong value."""

from lab.fuzz.early import text
from lab.fuzz.early.text import Computation, Instruction, Module
from lab.fuzz.early.values import VIEWS, Value, Values, branches, grouped

START, DONE = "jax_cxl_start", "jax_cxl_done"


class Replay:
    """Executes a module once. Each loop makes two iterations, and all branches run.

    Attributes:
      errors: a text for each read of memory that holds another value than expected.
      peak: the largest number of bytes in use. Each memory counts from the first instruction that
        touches it to the last.
    """

    def __init__(self, module: Module) -> None:
        self.errors: list[str] = []
        self._module, self._values = module, Values(module)
        # Maps each memory, named by its owner (Values.owner), to the values that it now holds.
        self._held: dict[Value, set[Value]] = {}
        # Maps each unfinished result to the values that its collective reads until its done.
        self._flying: dict[Value, list[Value]] = {}
        self._executed: set[str] = set()
        # When each instruction runs, and when each memory is used for the first and the last time.
        self._time: dict[str, int] = {}
        self._used: dict[Value, list[int]] = {}
        entry = module.computations[module.entry]
        parameters = [v for name in entry.parameters for v in self._values.of(name)]
        self._hold(parameters, "begin")
        self._run(entry)
        self._expect(self._values.of(entry.root), "the caller")
        self._touch(parameters, "end")
        self.peak = self._peak()

    def _run(self, computation: Computation) -> None:
        for i in computation.instructions.values():
            for operand in i.operands:
                if operand not in self._executed:
                    self.errors.append(f"{i.name} comes before its operand {operand}")
            self._executed.add(i.name)
            if i.opcode not in VIEWS:
                self._execute(i)

    def _execute(self, i: Instruction) -> None:
        done = i.target == DONE or i.opcode.endswith("-done")
        read = [v for operand in i.operands for v in self._values.of(operand)]
        if i.opcode.endswith("-done"):
            # The operand of a done is the tuple that its start returns. The tuple also contains the
            # start's operands. The done does not read them again, so they may be overwritten.
            read = [v for v in read if v in self._flying]
        for value in read:
            if value in self._flying and done:
                read = [*read, *self._flying.pop(value)]
            elif value in self._flying and not i.opcode.endswith("-update"):
                self.errors.append(f"{i.name} reads the unfinished {value}")
        self._expect(read, i.name)
        if i.opcode == "while":
            self._loop(i)
        elif i.opcode == "conditional":
            self._branch(i)
        elif i.opcode == "call":
            self._run(self._module.computations[i.called["to_apply"][0]])
        made = [v for v in self._values.of(i.name) if v[0] == i.name]
        self._hold(made, i.name)
        if i.target == START:
            # The second result is a token, which is ready at once.
            self._flying[i.name, (0,)] = read
        elif i.opcode.endswith("-start"):
            # A start may write into some of its operands. Only the others must stay as they are
            # until the done.
            written = {self._values.owner(v) for v in made}
            kept = [v for v in read if self._values.owner(v) not in written]
            self._flying |= dict.fromkeys(made, kept)

    def _loop(self, i: Instruction) -> None:
        condition, body = (
            self._module.computations[i.called[kind][0]] for kind in ("condition", "body")
        )
        for _ in range(2):
            for part in (condition, body):
                parameter = part.parameters[0]
                self._hold([v for v in self._values.of(parameter) if v[0] == parameter], i.name)
                self._run(part)
                self._expect(self._values.of(part.root), f"the end of {part.name}")

    def _branch(self, i: Instruction) -> None:
        before, after = self._held, []
        for branch in branches(i):
            self._held = dict(before)
            computation = self._module.computations[branch]
            self._run(computation)
            self._expect(self._values.of(computation.root), f"the end of {branch}")
            after.append(self._held)
        self._held = {m: set.intersection(*(h.get(m, set()) for h in after)) for m in after[0]}

    def _hold(self, written: list[Value], now: str) -> None:
        self._held |= grouped(self._values, written)
        self._touch(written, now)

    def _expect(self, read: list[Value], reader: str) -> None:
        for value in read:
            held = self._held.get(self._values.owner(value), set())
            if value not in held:
                self.errors.append(f"{reader} reads {value}, whose memory holds {sorted(held)}")
        self._touch(read, reader)

    def _touch(self, values: list[Value], now: str) -> None:
        time = self._time.setdefault(now, len(self._time))
        for value in values:
            used = self._used.setdefault(self._values.owner(value), [time, time])
            used[:] = min(used[0], time), max(used[1], time)

    def _peak(self) -> int:
        size: dict[Value, int] = {}
        for name, instruction in self._values.instructions.items():
            if instruction.opcode == "constant":
                continue
            for leaf in text.leaves(instruction.shape):
                owner = self._values.owner(self._values.value(name, leaf))
                size[owner] = max(size.get(owner, 0), text.num_bytes(instruction.shape, leaf))
        change = [0] * (len(self._time) + 1)
        for owner, (first, last) in self._used.items():
            change[first] += size.get(owner, 0)
            change[last + 1] -= size.get(owner, 0)
        most = now = 0
        for step in change:
            now += step
            most = max(most, now)
        return most
