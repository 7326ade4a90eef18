"""Modules, computations and instructions of XLA in their serialized form."""

import functools
from collections.abc import Callable, Iterator

import numpy as np

from jax_cxl._takeover.hlo import shape as shapes
from jax_cxl._takeover.hlo.shape import Shape
from jax_cxl._takeover.hlo.wire import Message

# HloModuleProto (xla/service/hlo.proto).
_NAME, _COMPUTATIONS, _PROGRAM_SHAPE, _ENTRY_ID, _SCHEDULE, _ALIASES = 1, 3, 4, 6, 7, 8
_DEVICE_ASSIGNMENT, _STACK_FRAMES = 15, 17
# HloComputationProto.
_INSTRUCTIONS, _ROOT_ID = 2, 6
_COMPUTATION_ID, _THREAD = 5, 8


class Instruction:
    """An instruction: its proto, with names for the fields that matter here."""

    NAME, OPCODE, SHAPE, METADATA, PARAMETER_NUMBER, TUPLE_INDEX = 1, 2, 3, 7, 9, 13
    DIMENSIONS, SLICES = 14, 17
    DYNAMIC_SLICE_SIZES = 20
    CHANNEL_ID, TARGET, ID, OPERANDS, CONTROL_PREDECESSORS, CALLED = 26, 28, 35, 36, 37, 38
    BACKEND_CONFIG, PAIRS, CONSTRAIN_LAYOUT, OPERAND_SHAPES = 43, 52, 56, 57
    HAS_SIDE_EFFECT, GLOBAL_IDS, ALIASING, API_VERSION = 65, 71, 74, 77

    def __init__(self, proto: Message) -> None:
        self.proto = proto

    @property
    def name(self) -> str:
        """Its name, unique in the module."""
        return self.proto.text(self.NAME)

    @functools.cached_property
    def opcode(self) -> str:
        """What it does, such as "all-reduce"."""
        return self.proto.text(self.OPCODE)

    @property
    def id(self) -> int:
        """Its number, unique in the module."""
        return self.proto.get(self.ID)

    @functools.cached_property
    def operands(self) -> list[int]:
        """The ids of its operands."""
        return self.proto.integers(self.OPERANDS)

    @property
    def parameter(self) -> int:
        """Which parameter of its computation it is, if it is one."""
        return self.proto.get(self.PARAMETER_NUMBER)

    def set_operands(self, operands: list[int]) -> None:
        self.proto.set_integers(self.OPERANDS, operands)
        self.operands = operands

    @functools.cached_property
    def shapes(self) -> list[Shape]:
        """The shapes of its result: of all parts, if it is a tuple."""
        return shapes.decode(Message(self.proto.blob(self.SHAPE)))

    @property
    def is_tuple(self) -> bool:
        return Message(self.proto.blob(self.SHAPE)).get(shapes.ELEMENT_TYPE) == shapes.TUPLE


class Computation:
    """A computation."""

    def __init__(self, proto: Message) -> None:
        self._proto = proto
        self._blobs = proto.blobs(_INSTRUCTIONS)
        parsed = [Instruction(Message(blob)) for blob in self._blobs]
        # In XLA's order.
        self._instructions = {instruction.id: instruction for instruction in parsed}
        self._position = {number: i for i, number in enumerate(self._instructions)}
        self._next = max(self._position, default=0) + 1
        self._new: dict[int, list[Instruction]] = {}

    @property
    def id(self) -> int:
        """Its number, unique in the module."""
        return self._proto.get(_COMPUTATION_ID)

    @property
    def is_asynchronous(self) -> bool:
        """Whether it runs beside its caller, between a start and a done."""
        return self._proto.text(_THREAD) not in ("", "main")

    @property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's."""
        return self.instruction(self._proto.get(_ROOT_ID))

    def instruction(self, number: int) -> Instruction:
        return self._instructions[number]

    def position(self, instruction: Instruction) -> int:
        """Returns the position of one of the instructions that XLA gave."""
        return self._position[instruction.id]

    def with_any(self, texts: "tuple[bytes, ...]") -> Iterator[Instruction]:
        """Yields the instructions that contain one of these texts, and all that are new, in order.

        Changed instructions count as new.
        """
        for number, blob in zip(self._instructions, self._blobs, strict=True):
            if number in self._new:
                yield from self._new[number]
            elif any(text in blob for text in texts):
                yield self._instructions[number]

    @functools.cached_property
    def dones(self) -> dict[int, Instruction]:
        """The instructions that wait for a single start, by the ids of the starts."""
        return {
            instruction.operands[0]: instruction
            for instruction in self.with_any((b"-done",))
            if instruction.opcode.endswith("-done") and len(instruction.operands) == 1
        }

    def instructions(self) -> Iterator[Instruction]:
        """Yields all instructions, as XLA gave them."""
        yield from self._instructions.values()

    def new_id(self) -> int:
        """Returns an id that no instruction has."""
        self._next += 1
        return self._next - 1

    def replace(self, old: Instruction, new: "list[Instruction]") -> None:
        """Replaces an instruction with others. The last of them must have the id of the old one."""
        assert new[-1].id == old.id
        self._new[old.id] = new

    def set_shape(self, number: int, shape: bytes) -> None:
        """Gives an instruction, or what has replaced it, another serialized ShapeProto."""
        instruction = self._new.get(number, [self.instruction(number)])[-1]
        instruction.proto.set(Instruction.SHAPE, shape)
        instruction.__dict__.pop("shapes", None)
        self.touch(instruction)

    def touch(self, instruction: Instruction) -> None:
        """Notes that an instruction has been changed in place."""
        if self._instructions.get(instruction.id) is instruction:
            self._new.setdefault(instruction.id, [instruction])

    def replacements(self) -> dict[int, list[int]]:
        """Returns, for each replaced instruction, the ids of its replacements."""
        return {old: [i.id for i in new] for old, new in self._new.items()}

    @property
    def changed(self) -> bool:
        """Whether anything was replaced."""
        return bool(self._new)

    def encode(self) -> bytes:
        numbers = iter(self._instructions)
        out = Message()
        for field, kind, value in self._proto.items():
            number = next(numbers) if field == _INSTRUCTIONS else None
            if number in self._new:
                for instruction in self._new[number]:
                    out.add(_INSTRUCTIONS, instruction.proto)
            else:
                out.append(field, kind, value)
        return out.encode()


class Module:
    """A module as XLA passes it to a compiler hook."""

    def __init__(self, data: bytes) -> None:
        self._proto = Message(data)
        # All computations by their ids, in XLA's order, and those that have been parsed.
        blobs = self._proto.blobs(_COMPUTATIONS)
        self._blobs = {Message(blob).get(_COMPUTATION_ID): blob for blob in blobs}
        self._computations: dict[int, Computation] = {}
        self._dropped: set[int] = set()
        # Computation -> the new order of its instructions.
        self._orders: dict[int, list[int]] = {}

    @functools.cached_property
    def name(self) -> str:
        """Its name, such as "jit_step"."""
        return self._proto.text(_NAME)

    @functools.cached_property
    def device_assignment(self) -> np.ndarray | None:
        """Ids of devices, of shape (replicas, partitions), None if they are not known yet."""
        columns = Message(self._proto.blob(_DEVICE_ASSIGNMENT)).messages(3)
        return np.array([column.integers(1) for column in columns]).T if columns else None

    @functools.cached_property
    def _positions(self) -> dict[int, int]:
        return {number: i for i, number in enumerate(self._blobs)}

    @functools.cached_property
    def _stack_frames(self) -> list[list[bytes]]:
        """The serialized files, functions, locations and frames of the module's source."""
        proto = Message(self._proto.blob(_STACK_FRAMES))
        return [proto.blobs(number) for number in (1, 2, 3, 4)]

    def forget_donations(self, arguments: set[int]) -> None:
        """Gives other memory to the results that would reuse the memory of these arguments."""
        aliases = Message(self._proto.blob(_ALIASES))
        entries = aliases.messages(1)
        aliases.clear(1)
        for entry in entries:
            if entry.get(2) not in arguments:
                aliases.add(1, entry)
        self._proto.set(_ALIASES, aliases)

    @property
    def entry(self) -> Computation:
        """The computation that runs first."""
        return self.computation(self._proto.get(_ENTRY_ID))

    @property
    def program_shape(self) -> tuple[list[bytes], bytes]:
        """The serialized ShapeProtos of the program's arguments, and of its result."""
        shape = Message(self._proto.blob(_PROGRAM_SHAPE))
        return shape.blobs(1), shape.blob(2)

    @property
    def is_scheduled(self) -> bool:
        """Whether XLA has decided the order of the instructions."""
        return self._proto.has(_SCHEDULE)

    def sequence(self, computation: Computation) -> list[int]:
        """Returns the ids of a computation's instructions in the order that XLA has decided."""
        for entry in Message(self._proto.blob(_SCHEDULE)).messages(1):
            if entry.get(1) == computation.id:
                return Message(entry.blob(2)).integers(1)
        return []

    def reorder(self, computation: Computation, sequence: list[int]) -> None:
        """Sets the order of a computation's instructions, by the ids that XLA gave them."""
        self._orders[computation.id] = sequence

    def with_any(self, texts: "tuple[bytes, ...]") -> Iterator[tuple[Computation, Instruction]]:
        """Yields what `Computation.with_any` yields for each computation, in order."""
        for number in self._blobs:
            known = self._computations.get(number)
            if (known is not None and known.changed) or self.contains_any(number, texts):
                computation = self.computation(number)
                for instruction in computation.with_any(texts):
                    yield computation, instruction

    @functools.cached_property
    def wrappers(self) -> "dict[int, tuple[Computation, Instruction]]":
        """The fusions and `async-start`s, with their computations, by the ids of what they wrap."""
        opcodes = "fusion", "async-start"
        texts = tuple(Message().add(Instruction.OPCODE, o).encode() for o in opcodes)
        return {
            number: (computation, instruction)
            for computation, instruction in self.with_any(texts)
            if instruction.opcode in opcodes
            for number in instruction.proto.integers(Instruction.CALLED)
        }

    def contains_any(self, number: int, texts: "tuple[bytes, ...]") -> bool:
        """Whether the serialized computation with this id contains one of these texts."""
        return any(text in self._blobs[number] for text in texts)

    def computation(self, number: int) -> Computation:
        if number not in self._computations:
            self._computations[number] = Computation(Message(self._blobs[number]))
        return self._computations[number]

    def place(self, computation: Computation, instruction: Instruction) -> tuple[int, int]:
        """Returns where an instruction is in the module."""
        return self._positions[computation.id], computation.position(instruction)

    def drop(self, number: int) -> None:
        """Removes a computation that is no longer called."""
        self._dropped.add(number)

    def source_line(
        self, instruction: Instruction, skip: Callable[[str], bool] = lambda file: False
    ) -> str:
        """Returns the source line of an instruction as "file:line (function)", "" if not known.

        The line is the first one of the callers whose file is not skipped.
        """
        metadata = Message(instruction.proto.blob(Instruction.METADATA))
        files, functions, locations, frames = self._stack_frames
        number = metadata.get(15)
        for _ in frames:
            if not 0 < number <= len(frames):
                break
            frame = Message(frames[number - 1])
            location = Message(locations[frame.get(1) - 1])
            file = files[location.get(1) - 1].decode()
            if not skip(file):
                function = functions[location.get(2) - 1].decode()
                return f"{file}:{location.get(3)} ({function})"
            number = frame.get(2)  # the caller
        file = metadata.text(3)
        return f"{file}:{metadata.get(4)}" if file and not skip(file) else ""

    def encode(self) -> bytes:
        changed = {n: c.replacements() for n, c in self._computations.items() if c.changed}
        out = Message()
        # Computations keep their positions, because callees must come before their callers.
        numbers = iter(self._blobs)
        for field, kind, value in self._proto.items():
            number = next(numbers) if field == _COMPUTATIONS else None
            if number in self._dropped:
                continue
            if number in changed:
                out.add(field, self._computations[number].encode())
            elif field == _SCHEDULE and isinstance(value, bytes):
                out.add(field, self._schedule(Message(value), changed))
            else:
                out.append(field, kind, value)
        return out.encode()

    def _schedule(self, schedule: Message, changed: dict[int, dict[int, list[int]]]) -> Message:
        """Returns the schedule with the replacements in the places of replaced instructions."""
        out = Message()
        for entry in schedule.messages(1):
            number = entry.get(1)
            if number in self._dropped:
                continue
            if number in changed or number in self._orders:
                ids = self._orders.get(number) or Message(entry.blob(2)).integers(1)
                new = changed.get(number, {})
                longer = [i for old in ids for i in new.get(old, [old])]
                entry = Message().add(1, number).add(2, Message().set_integers(1, longer))
            out.add(1, entry)
        return out
