"""The command line of `python -m jax_cxl nccl tune`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

from . import library
from .report import cli, cuda, ways

_DESCRIPTION = """\
Finds the tuning table with which libnccl.so.2 is fastest on the GPUs of this machine, and writes
it, for JAX_CXL_TUNING. It takes about a minute, and needs neither JAX nor PyTorch. Nothing else
should run.

It varies one value after another, and begins with the table that JAX_CXL_TUNING names, or else
with the built-in choices. All candidates take turns, and medians of the turns count. A value wins
if the geometric mean of its times is smaller by more than 1%, and if no operation and size is
slower by more than 3% than at the beginning."""

_GAIN, _SLOWER = 0.01, 0.03
_SIZE = r"goes through a pool, (.*) a rank"  # in a line of NCCL_DEBUG=INFO
_KIB = 1 << 10
SIZES = tuple(kib * _KIB for kib in (64, 128, 256, 512, 1024, 4096, 16384, 65536))
_VALUES = {
    "nccl_blocks": (16, 32, 64),
    "nccl_chunk_bytes": (256 * _KIB, 512 * _KIB, 1024 * _KIB),
    "nccl_flagged_bytes": (128 * _KIB, 256 * _KIB, 512 * _KIB),
    "nccl_send_chunk_bytes": (128 * _KIB, 256 * _KIB, 512 * _KIB),
    "nccl_send_flagged_bytes": (64 * _KIB, 128 * _KIB, 256 * _KIB),
}

Table = dict[str, int]
_Case = tuple[str, int, int]  # an operation, its bytes, and the calls of a measurement


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 2 if something is missing, 1 if a table failed or was wrong."""
    parser = library.command_parser(f"{library.PROGRAM} tune", _DESCRIPTION)
    parser.add_argument("table", type=pathlib.Path, metavar="FILE", help="where to write the table")
    parser.add_argument("--turns", type=int, default=25, metavar="T", help="(default: 25)")
    options = parser.parse_args(arguments)
    if options.turns < 1:
        parser.error("--turns must be at least 1")
    place = options.table if options.table.exists() else options.table.parent
    if options.table.is_dir() or not os.access(place, os.W_OK):
        parser.error(f"{options.table} cannot be written: name a file in a folder of yours")
    if cli.lacks(parser.prog):
        return 2
    try:
        path = os.environ.get("JAX_CXL_TUNING")
        first: Table = json.loads(pathlib.Path(path).read_text())["tuning"] if path else {}
        best, measured = _tune(first, options.turns)
        _check(best)
    except (ways.WayError, OSError, ValueError, KeyError, TypeError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    chosen = {name: best[name] for name in _VALUES if best.get(name) != first.get(name)}
    print(f"chosen: {_text(chosen) if chosen else 'nothing, the present values are the best'}")
    found = {"tuning": best, "emulated": True, "turns": options.turns, "measured": measured}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    options.table.write_text(f"{{{lines}}}\n")
    return 0


def _tune(first: Table, turns: int) -> tuple[Table, list[dict[str, Any]]]:
    """Returns the best table, and what was measured of each."""
    best = first
    measured: list[dict[str, Any]] = []
    for name, values in _VALUES.items():
        tables = [first, best, *({**best, name: value} for value in values)]
        tables = [table for i, table in enumerate(tables) if table not in tables[:i]]
        cases = _cases(sends="send" in name)
        with _started(tables) as every:
            rounds = every.rounds(turns, "microseconds", cases)
        for way, why in every.failed.items():
            raise ways.WayError(f"{_text(tables[int(way)])}: {why}")
        times = [[median for _, median, _ in rounds[way]] for way in rounds]
        for i, table in enumerate(tables):
            mean, most = _mean(times[0], times[i]), max(_ratios(times[0], times[i]))
            measured.append({**table, "mean": round(mean, 4), "microseconds": times[i]})
            shown = table.get(name) or "built-in"
            print(f"{name} {shown}: mean {mean:.3f}, slowest {most:.3f}", flush=True)
        best = tables[choose(times, tables.index(best))]
    return best, measured


def choose(times: Sequence[Sequence[float]], present: int) -> int:
    """Returns which table is the best.

    Args:
      times: the times of each table, of the first one those at the beginning.
      present: the table that is the best so far.
    """
    right = [i for i, each in enumerate(times) if max(_ratios(times[0], each)) <= 1 + _SLOWER]
    fastest = min(right, key=lambda i: _mean(times[0], times[i]))
    if present in right and _mean(times[present], times[fastest]) >= 1 - _GAIN:
        return present
    return fastest


def _mean(before: Sequence[float], after: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, _ratios(before, after))) / len(before))


def _ratios(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [time / before[i] for i, time in enumerate(after)]


@contextlib.contextmanager
def _started(tables: Sequence[Table]) -> Iterator[ways.Ways]:
    """Starts processes for each table, which have communicators through pools."""
    pool, cards = ways.environments(os.environ)["pool"], cuda.count()
    with tempfile.TemporaryDirectory(prefix="jax_cxl_tune_") as folder:
        every = {}
        for i, table in enumerate(tables):
            path = pathlib.Path(folder, f"{i}.json")
            path.write_text(json.dumps({"tuning": table}))
            variables = {**pool, "JAX_CXL_TUNING": str(path)}
            every[str(i)] = ways.Way(variables, cards, ways.PRELOADED)
        with contextlib.closing(ways.Ways(every)) as made:
            with futures.ThreadPoolExecutor() as threads:
                list(threads.map(lambda way: way.start(max(SIZES)), every.values()))
            said = [way.said() for way in every.values()]
            if len({match[1] for each in said if (match := re.search(_SIZE, each))}) > 1:
                raise ways.WayError(
                    f"/dev/shm has no room for {len(tables)} communicators of one size: enlarge it,"
                    " in Docker by --shm-size=4g"
                )
            for each in said:
                if goes := re.search(r"communicator .* goes to (.*)", each):
                    raise ways.WayError(f"a communicator goes to {goes[1]}")
            yield made


def _check(table: Table) -> None:
    """Compares results of all calls with values that the ranks compute."""
    with _started([table]) as every:
        for op, size, _ in [*_cases(sends=False), *_cases(sends=True)]:
            if any(every.ways["0"].ask("check", op, size, 2)):
                raise ways.WayError(f"WRONG results of {op} of {size} bytes with {_text(table)}")


def _cases(*, sends: bool) -> list[_Case]:
    ops = [op for op in cli.OPS if (op == "sendrecv") == sends]
    return [(op, size, max(2, min(50, (8 << 20) // size))) for op in ops for size in SIZES]


def _text(table: Table) -> str:
    return ", ".join(f"{name} {value}" for name, value in table.items()) or "built-in"
