"""`python -m jax_cxl tune`: finds the tuning table that is fastest on this machine."""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from jax_cxl import _arguments
from jax_cxl._bench import results_file
from jax_cxl._runtime import configuration, tuning_table

_DESCRIPTION = """\
Measures collectives between CPU ranks of this machine with different tuning tables, and writes the
best table, for JAX_CXL_TUNING. This takes some minutes. Nothing else should run.

It varies one value after another. Each candidate runs as a job of its own (python -m jax_cxl
bench). All candidates run once in each turn, and the best turn of each operation and size counts.
A candidate replaces the present value if the geometric mean of its times is smaller by more than
3%."""

_MARGIN = 0.03


@dataclasses.dataclass(frozen=True)
class _Question:
    """A value to vary, and the operations and sizes that depend on it."""

    name: str
    candidates: list[dict[str, int]]
    ops: str
    sizes: str


def _questions(ranks: int) -> list[_Question]:
    kib, mib = 1 << 10, 1 << 20
    slots = [(128 * kib, 8), (256 * kib, 8), (512 * kib, 4), (512 * kib, 8), (mib, 4)]
    never = 1 << 62
    questions = [
        _Question(
            "slots",
            [{"slot_bytes": size, "num_slots": number} for size, number in slots],
            "psum,all_gather,all_to_all",
            "256KiB,2MiB,16MiB",
        ),
        _Question(
            "copies",
            [{"past_caches_bytes": least} for least in (mib, 4 * mib, 8 * mib, 32 * mib, never)],
            "psum,all_gather",
            "2MiB,6MiB,12MiB,48MiB",
        ),
        _Question(
            "inline limit",
            [{"inline_bytes": most} for most in (kib, 4 * kib, 8 * kib, 16 * kib)],
            "psum,all_gather",
            "2KiB,8KiB,16KiB",
        ),
        # With two ranks all-reduce always reads its peer at once.
        _Question(
            "all-reduce algorithm",
            [{"all_read_bytes": most} for most in (4 * kib, 16 * kib, 64 * kib, 256 * kib)],
            "psum",
            "8KiB,32KiB,128KiB",
        ),
    ]
    return questions if ranks > 2 else questions[:-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the status to exit with."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m jax_cxl tune",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "table", type=_arguments.output_file, metavar="FILE", help="where to write the table"
    )
    parser.add_argument(
        "--ranks", type=_arguments.whole_number(2), default=2, metavar="N", help="(default: 2)"
    )
    parser.add_argument(
        "--turns", type=_arguments.whole_number(1), default=3, metavar="T", help="(default: 3)"
    )
    parser.add_argument(
        "--only", metavar="NAME", help="one of: slots, copies, inline limit, all-reduce algorithm"
    )
    options = parser.parse_args(arguments)
    questions = _questions(options.ranks)
    if options.only:
        questions = [question for question in questions if question.name == options.only]
        if not questions:
            parser.error(f"with {options.ranks} ranks no value to vary is called {options.only!r}")

    best = tuning_table.table(tuning_table.load(configuration.from_environment().tuning))
    measured: list[dict] = []
    machine: dict = {}
    for question in questions:
        scores, machine = _answer(question, best, options.ranks, options.turns)
        for candidate, score in zip(question.candidates, scores, strict=True):
            print(f"{question.name}: {_text(candidate)}: {score:.1f} us", flush=True)
            measured.append({**candidate, "mean_us": round(score, 3)})
        best |= _choose(question, scores, best)
        print(f"{question.name}: {_text({k: best[k] for k in question.candidates[0]})}")
    found = {
        "machine": machine,
        "command": results_file.command_line("python -m jax_cxl tune", arguments),
        "emulated": True,
        "tuning": best,
        "measured": measured,
    }
    results_file.write(options.table, found)
    return 0


def _answer(
    question: _Question, tuned: dict[str, int], ranks: int, turns: int
) -> tuple[list[float], dict]:
    """Returns the geometric mean of the times of each candidate in microseconds, and the machine.

    The best turn counts. On a shared machine the medians of one table differed by half from turn to
    turn, which is more than the difference between two tables.
    """
    best: list[dict[tuple[str, int], float]] = [{} for _ in question.candidates]
    machine: dict = {}
    for _ in range(turns):
        for candidate, times in zip(question.candidates, best, strict=True):
            found = _bench(question, tuned | candidate, ranks)
            machine = found["machine"]
            for row in found["results"]:
                measured = row["op"], row["bytes"]
                median = row["time_us"]["median"]
                times[measured] = min(median, times.get(measured, median))
    return [math.exp(statistics.fmean(map(math.log, times.values()))) for times in best], machine


def _bench(question: _Question, values: dict[str, int], ranks: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="jax_cxl_tune_") as folder:
        table, results = (pathlib.Path(folder) / name for name in ("table.json", "results.json"))
        table.write_text(json.dumps({"tuning": values}))
        command = [
            *(sys.executable, "-m", "jax_cxl", "bench", "--ranks", str(ranks)),
            *("--ops", question.ops, "--sizes", question.sizes, "--repeats", "3"),
            *("--json", str(results)),
        ]
        done = subprocess.run(
            command,
            env={**os.environ, "JAX_CXL_TUNING": str(table)},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr}")
        return json.loads(results.read_text())


def _choose(question: _Question, scores: list[float], best: dict[str, int]) -> dict[str, int]:
    """Returns the fastest candidate, or the present one unless it is slower by the margin."""
    fastest = min(range(len(scores)), key=scores.__getitem__)
    for candidate, score in zip(question.candidates, scores, strict=True):
        present = all(best[name] == value for name, value in candidate.items())
        if present and score <= scores[fastest] * (1 + _MARGIN):
            return candidate
    return question.candidates[fastest]


def _text(values: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
