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

from jax_cxl._commands import option_types
from jax_cxl._commands.measuring import results_file
from jax_cxl._job import configuration, tuning_table

_DESCRIPTION = """\
Measures collectives between ranks of this machine with different tuning tables, and writes the
best table, for JAX_CXL_TUNING. This takes some minutes. Nothing else should run.

It varies one value after another. Each candidate runs as a job of its own (python -m jax_cxl
bench). All candidates run once in each turn, and the best turn of each operation and size counts.
A candidate replaces the present value if the geometric mean of its times is smaller by more than
3%."""

_MARGIN = 0.03


@dataclasses.dataclass(frozen=True)
class _Question:
    """A question for measurements: which of the `candidates` is the fastest.

    A candidate is a set of values of the tuning table. `ops` and `sizes` are the operations and
    sizes to measure, whose speed depends on these values.
    """

    name: str
    candidates: list[dict[str, int]]
    ops: str
    sizes: str


def _questions(ranks: int) -> list[_Question]:
    kib, mib = 1 << 10, 1 << 20
    slots = [(128 * kib, 8), (256 * kib, 8), (512 * kib, 4), (512 * kib, 8), (mib, 4)]
    past_caches = (mib, 4 * mib, 8 * mib, 32 * mib, tuning_table.NEVER)
    inline = (kib, 4 * kib, 8 * kib, 16 * kib)
    all_read = (4 * kib, 16 * kib, 64 * kib, 256 * kib)
    questions = [
        _Question(
            "slots",
            [{"slot_bytes": size, "num_slots": number} for size, number in slots],
            *("psum,all_gather,all_to_all", "256KiB,2MiB,16MiB"),
        ),
        _Question(
            "copies",
            [{"past_caches_bytes": least} for least in past_caches],
            *("psum,all_gather", "2MiB,6MiB,12MiB,48MiB"),
        ),
        _Question(
            "inline limit",
            [{"inline_bytes": most} for most in inline],
            *("psum,all_gather", "2KiB,8KiB,16KiB"),
        ),
    ]
    if ranks > 2:  # With two, both algorithms of all-reduce read the only peer at once.
        candidates = [{"all_read_bytes": most} for most in all_read]
        questions.append(_Question("all-reduce algorithm", candidates, "psum", "8KiB,32KiB,128KiB"))
    return questions


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the status to exit with."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = option_types.command("tune", _DESCRIPTION)
    parser.add_argument(
        "table", type=option_types.output_file, metavar="FILE", help="where to write the table"
    )
    add_number = option_types.add_number
    add_number(parser, "--ranks", 2, "number of ranks", 2)
    add_number(parser, "--turns", 1, "how many times each candidate runs", 3, "T")
    options = parser.parse_args(arguments)
    questions = _questions(options.ranks)
    best = tuning_table.table(tuning_table.load(configuration.from_environment().tuning))
    measured: list[dict] = []
    machine: dict = {}
    for question in questions:
        scores, machine = _answer(question, best, options)
        for candidate, score in zip(question.candidates, scores, strict=True):
            print(f"{question.name}: {_text(candidate)}: {score:.1f} us", flush=True)
            measured.append({**candidate, "mean_us": round(score, 3)})
        best |= _choose(question, scores, best)
        print(f"{question.name}: {_text({k: best[k] for k in question.candidates[0]})}")
    table = {
        "machine": machine,
        "command": results_file.command_line("python -m jax_cxl tune", arguments),
        "emulated": True,
        "tuning": best,
        "measured": measured,
    }
    results_file.write(options.table, table)
    return 0


def _answer(
    question: _Question, tuned: dict[str, int], options: argparse.Namespace
) -> tuple[list[float], dict]:
    """Measures all candidates. Returns the mean time of each in microseconds, and the machine.

    A turn measures each candidate once. For each operation and size, only the fastest turn of a
    candidate counts. On a shared machine, the medians of a single candidate differed by half from
    turn to turn, which is more than the difference between two candidates. The mean over operations
    and sizes is geometric.
    """
    best: list[dict[tuple[str, int], float]] = [{} for _ in question.candidates]
    machine: dict = {}
    for _ in range(options.turns):
        for candidate, times in zip(question.candidates, best, strict=True):
            found = _bench(question, tuned | candidate, options)
            machine = found["machine"]
            for row in found["results"]:
                measured = row["op"], row["bytes"]
                median = row["time_us"]["median"]
                times[measured] = min(median, times.get(measured, median))
    return [math.exp(statistics.fmean(map(math.log, times.values()))) for times in best], machine


def _bench(question: _Question, values: dict[str, int], options: argparse.Namespace) -> dict:
    """Runs the benchmark with the tuning table `values`. Returns its results."""
    with tempfile.TemporaryDirectory(prefix="jax_cxl_tune_") as folder:
        table, results = (pathlib.Path(folder) / name for name in ("table.json", "results.json"))
        table.write_text(json.dumps({"tuning": values}))
        command = [
            *(sys.executable, "-m", "jax_cxl", "bench"),
            *("--ranks", str(options.ranks), "--ops", question.ops, "--sizes", question.sizes),
            *("--repeats", "3", "--json", str(results)),
        ]
        environment = os.environ | {"JAX_CXL_TUNING": str(table)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr}")
        return json.loads(results.read_text())


def _choose(question: _Question, scores: list[float], best: dict[str, int]) -> dict[str, int]:
    """Returns the fastest candidate, or the present one if it takes at most `_MARGIN` longer."""
    fastest = min(scores)
    for candidate, score in zip(question.candidates, scores, strict=True):
        if candidate.items() <= best.items() and score <= fastest * (1 + _MARGIN):
            return candidate
    return question.candidates[scores.index(fastest)]


def _text(values: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
