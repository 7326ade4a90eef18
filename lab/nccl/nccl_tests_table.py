"""Compares jax_cxl with the better of NCCL's two ways, from the output of nccl_tests.sh.

    ROUNDS=5 lab/nccl/nccl_tests.sh 2 > nccl-tests.txt
    python -m lab.nccl.nccl_tests_table nccl-tests.txt --json found.json

NCCL has two ways through the host's memory: by kernels, its default, and by copy engines. Prints a
table for each number of GPUs. Ends with 1 if an element was wrong or a run failed.
"""

import argparse
import pathlib
import re
import statistics
import sys
from collections.abc import Iterable

from jax_cxl._commands.measuring import results_file
from jax_cxl._sizes import format_size
from lab.gpu import gpu_suite

_WAYS = ("pool", "nccl", "copies")
_RUN = re.compile(r"== (\d+) GPUs (\w+) (\w+) (.*) : status (\d+), wrong (\d+)")
# Size, count, type, reduction, root, and the time out of place in us.
_ROW = re.compile(r" +(\d+) +\d+ +\w+ +\w+ +-?\d+ +([\d.e+]+) ")


def read(lines: Iterable[str]) -> tuple[list[dict], list[str]]:
    """Returns a row for each call, and the runs that failed or were wrong.

    A row has the sizes, and for each way the median of the rounds and their range. A size is left
    out if a way has no time for it.
    """
    times: dict[tuple[str, str, bool], dict[int, dict[str, list[float]]]] = {}
    bad = []
    sizes: dict[int, dict[str, list[float]]] = {}
    way = ""
    for line in lines:
        if run := _RUN.match(line):
            gpus, way, call, options, status, wrong = run.groups()
            if (status, wrong) != ("0", "0"):
                bad.append(line.strip())
            sizes = times.setdefault((gpus, call, "-G" in options.split()), {})
        elif row := _ROW.match(line):
            sizes.setdefault(int(row[1]), {}).setdefault(way, []).append(float(row[2]))
    rows = []
    for (gpus, call, graph), found in times.items():
        ways = [way for way in _WAYS if any(way in taken for taken in found.values())]
        whole = {size: taken for size, taken in sorted(found.items()) if taken.keys() >= {*ways}}
        rounds = min((len(taken[way]) for taken in whole.values() for way in ways), default=0)
        row = {"gpus": int(gpus), "call": call, "graph": graph, "rounds": rounds}
        row["bytes"] = [*whole]
        for way in ways:
            row[f"{way}_us"] = [round(statistics.median(t[way]), 2) for t in whole.values()]
            row[f"{way}_range_us"] = [[min(t[way]), max(t[way])] for t in whole.values()]
        rows.append(row)
    return rows, bad


def table(rows: list[dict]) -> str:
    """Returns a Markdown table with a line for each call, and a column for each size."""
    sizes = sorted({size for row in rows for size in row["bytes"]})
    lines = [["", *map(format_size, sizes)], ["---"] * (len(sizes) + 1)]
    for row in rows:
        cells = {size: _cell(row, i) for i, size in enumerate(row["bytes"])}
        name = row["call"] + (" in a graph" if row["graph"] else "")
        lines.append([name, *(cells.get(size, "") for size in sizes)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row: dict, i: int) -> str:
    """Returns the times of a call of one size, and how many times as fast the pool is."""
    ways = [way for way in _WAYS if f"{way}_us" in row]
    medians = [row[f"{way}_us"][i] for way in ways]
    times = ", ".join(f"{us:,.{int(us < 100)}f}" for us in medians)
    others = [way for way in ways if way != "pool"]
    if "pool" not in ways or not others:
        return times
    better = min(others, key=lambda way: row[f"{way}_us"][i])
    ratio = f"{row[f'{better}_us'][i] / row['pool_us'][i]:.2f}"
    slower = row["pool_range_us"][i][0] > row[f"{better}_range_us"][i][1]
    return f"{times}: {f'**{ratio}**' if slower else ratio}"


def main() -> int:
    """Prints the tables, and writes the results file; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="outputs of nccl_tests.sh")
    parser.add_argument("--json", type=pathlib.Path, help="results file to write on this machine")
    options = parser.parse_args()
    lines = [line for path in options.files for line in path.read_text().splitlines()]
    rows, bad = read(lines)
    if not rows:
        parser.error("no output of nccl_tests.sh in these files")
    for gpus in sorted({row["gpus"] for row in rows}):
        print(
            f"{gpus} GPUs, us out of place, medians: {', '.join(_WAYS)}: better of the last two /"
        )
        print("pool; bold where every round of the pool was slower than every round of that one\n")
        print(table([row for row in rows if row["gpus"] == gpus]) + "\n")
    for line in bad:
        print(f"FAILED: {line}")
    if options.json:
        found = gpu_suite.head("python -m lab.nccl.nccl_tests_table") | {"failed": bad}
        results_file.write(options.json, found | {"results": rows})
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
