"""Deliberate mistakes in jax_cxl's scheduler, which check.py has to find."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from jax_cxl._takeover.early import Early
from jax_cxl._takeover.hlo.module import Module
from jax_cxl._takeover.schedule import memory, order


def _memory() -> Any:
    """Makes the scheduler forget which results share memory with other results."""
    return mock.patch.object(memory, "_joined", lambda *arguments: set())


def _operands() -> Any:
    """Makes the scheduler put the first start of a computation before all other instructions."""
    original = Module.reorder

    def reorder(self, computation, sequence):
        start = next(n for n in sequence if _is_start(computation.instruction(n)))
        original(self, computation, [start, *(n for n in sequence if n != start)])

    return mock.patch.object(Module, "reorder", reorder)


def _bytes() -> Any:
    """Makes the scheduler ignore how much memory an order takes."""
    original = order.early

    def early(nodes, limit):
        return original(nodes, 1 << 60)

    return mock.patch.object(order, "early", early)


def _processes() -> Any:
    """Makes the scheduler treat only half of the collectives, those whose starts have low numbers.

    Each process numbers its instructions differently, so processes then choose different orders.
    """
    original = Early.nodes

    def with_numbers(self, computation, sequence):
        if calls := sorted(self.calls.get(computation.id, {}).items()):
            self.calls[computation.id] = dict(calls[: (len(calls) + 1) // 2])
        return original(self, computation, sequence)

    return mock.patch.object(Early, "nodes", with_numbers)


def _is_start(instruction) -> bool:
    return instruction.opcode.endswith("-start") or instruction.opcode == "get-tuple-element"


_BY_NAME: dict[str, Callable[[], Any]] = {
    "memory": _memory,
    "operands": _operands,
    "bytes": _bytes,
    "processes": _processes,
}
ALL = tuple(_BY_NAME)


@contextlib.contextmanager
def made(name: str) -> Iterator[None]:
    """Makes the mistake `name` inside the context."""
    with _BY_NAME[name]():
        yield
