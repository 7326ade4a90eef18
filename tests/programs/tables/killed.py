"""A process that lab/kills/table_kills.py starts: it changes a table, or reads it.

The elements of row i are i + n * (1, 2, 3 ...), where n counts the steps that have changed the row.
Step k changes the rows `_ids(k)`, and row 0. So row 0 shows how many steps there were, and thus
what each row has to be.
"""

import os
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "helpers"))

import deadly
import jax
import numpy as np
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the store.", required=True)
_READ = flags.DEFINE_bool("read", False, "Reads the table instead of changing it.")
_DIE = flags.DEFINE_bool("die", False, "Dies in the middle of a step.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed.")
_STEPS = flags.DEFINE_integer("steps", 1 << 30, "How many steps to take.")
_BREAK = flags.DEFINE_bool("break", False, "Takes rows without a look at the words of their parts.")

ROWS, WIDTH = 6000, 300
_CHANGED = 400  # rows of a step
_FACTORS = np.arange(1, WIDTH + 1, dtype=np.int32)


def first_rows() -> np.ndarray:
    """Returns the rows before the first step."""
    return np.repeat(np.arange(ROWS, dtype=np.int32)[:, None], WIDTH, axis=1)


def _ids(step: int) -> np.ndarray:
    return np.unique(np.random.default_rng(step).integers(1, ROWS, _CHANGED))


class Counts:
    """How many steps have changed each row."""

    def __init__(self) -> None:
        self._steps = 0
        self._counts = np.zeros(ROWS, np.int32)

    def at(self, steps: int) -> np.ndarray:
        """Returns the counts after a number of steps. Later calls never ask for fewer steps."""
        while self._steps < steps:
            self._steps += 1
            self._counts[_ids(self._steps)] += 1
            self._counts[0] += 1
        assert self._steps == max(steps, 0)
        return self._counts.copy()


def _rows(counts: np.ndarray) -> np.ndarray:
    return first_rows() + counts[:, None] * _FACTORS


def _write() -> None:
    jax_cxl.initialize()
    own, processes = jax.process_index(), jax.process_count()
    table = jax_cxl.Table.open(_WHERE.value, "table", timeout=100)
    take = jax.jit(table.take)
    everything = np.arange(ROWS, dtype=np.int32)
    # An earlier job may have died in a step. This empty step completes that step, unless it had not
    # begun.
    table.add(np.empty(0, np.int32), np.empty((0, WIDTH), np.int32))
    step = int(take(everything[:1])[0, 0])
    counts = Counts()
    expected = _rows(counts.at(step))
    rng = random.Random(_SEED.value)
    if _DIE.value and rng.randrange(processes) == own:
        _let_die(table, rng)
    for _ in range(_STEPS.value + 1):
        found = np.asarray(take(everything))
        if found.tobytes() != expected.tobytes():
            wrong = np.flatnonzero((found != expected).any(1))
            deadly.say(wrong=f"rows {wrong[:5].tolist()} after step {step}")
            os._exit(3)
        if own == 0:
            deadly.say(step=step)
        step += 1
        expected = _rows(counts.at(step))
        ids = np.array_split(np.append(_ids(step), 0), processes)[own]
        table.add(ids, np.repeat(_FACTORS[None], len(ids), axis=0))


def _let_die(table: jax_cxl.Table, rng: random.Random) -> None:
    # The process dies in one of its next 1,499 writes. A step makes many writes: of a journal, of
    # words, and of the rows of each part.
    deaths = deadly.Deaths(rng.randrange(1, 1500), lambda: deadly.say(died="in a step"))
    devices = table._memory.section.devices
    devices.core = deadly.DeadlyMemory(devices.core, deaths)
    for column in table._columns.values():
        column.native = deadly.DeadlyMemory(column.native, deaths)


def _read() -> None:
    table = jax_cxl.Table.open(_WHERE.value, "table", timeout=100)
    if _BREAK.value:
        # The words tell which step changes a part of the rows. This makes a table over the same
        # memory that ignores the words, so that its takes do not notice when rows change.
        rows = table._columns["rows"]
        rows.native = None
        memory = table._memory
        address = memory.address(memory.plan.column(0))
        rows.__init__(
            rows._devices, (rows.identity, 0), address, table.shape, rows.dtype, rows._keeps
        )
    take = jax.jit(table.take)
    least, most = Counts(), Counts()
    rng = np.random.default_rng(_SEED.value)
    takes = 0
    # This line comes before the first take, which waits if a writer has died in a step.
    deadly.say(takes=takes)
    while True:
        ids = np.append(rng.integers(0, ROWS, 3000), 0).astype(np.int32)
        before = int(take(ids[-1:])[0, 0])
        found = np.asarray(take(ids))
        after = int(take(ids[-1:])[0, 0])
        counts = (found[:, 0] - ids).astype(np.int32)
        torn = (found != ids[:, None] + counts[:, None] * _FACTORS).any(1)
        # The last step that row 0 shows may not have reached all rows yet, and the next step may
        # have reached some rows already.
        early = counts < least.at(before - 1)[ids]
        late = counts > most.at(after + 1)[ids]
        for wrong, what in ((torn, "torn"), (early, "too old"), (late, "too new")):
            if wrong.any():
                deadly.say(
                    wrong=f"row {ids[wrong][0]} is {what} between steps {before} and {after}"
                )
                os._exit(3)
        takes += 1
        if takes % 20 == 1:
            deadly.say(takes=takes, step=after)


def main(_: list[str]) -> None:
    (_read if _READ.value else _write)()


if __name__ == "__main__":
    app.run(main)
