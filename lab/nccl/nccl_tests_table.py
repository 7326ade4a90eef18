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
from typing import Any

from jax_cxl._commands.measuring import results_file
from jax_cxl._nccl.report import text
from lab.gpu import gpu_suite

_RUN = re.compile(r"== (\d+) GPUs (\w+) (\w+) (.*) : status (\d+), wrong (\d+)")
# Size, count, type, reduction, root, and the time out of place in us.
_ROW = re.compile(r" +(\d+) +\d+ +\w+ +\w+ +-?\d+ +([\d.e+]+) ")


def read(lines: Iterable[str]) -> tuple[list[dict], list[str]]:
    """Returns a row for each call, and the runs that failed or were wrong.

    A row has for each size and way the least time of the rounds, the median and the most. A size is
    left out if a way has no time for it.
    """
    calls: dict[tuple[str, str, bool], dict[int, dict[str, list[float]]]] = {}
    bad = []
    sizes: dict[int, dict[str, list[float]]] = {}
    way = ""
    for line in lines:
        if run := _RUN.match(line):
            gpus, way, call, options, status, wrong = run.groups()
            if (status, wrong) != ("0", "0"):
                bad.append(line.strip())
            sizes = calls.setdefault((gpus, call, "-G" in options.split()), {})
        elif row := _ROW.match(line):
            sizes.setdefault(int(row[1]), {}).setdefault(way, []).append(float(row[2]))
    rows = []
    for (gpus, call, graph), found in calls.items():
        ways = [way for way in text.WAYS if any(way in taken for taken in found.values())]
        whole = {size: taken for size, taken in sorted(found.items()) if taken.keys() >= {*ways}}
        row: dict[str, Any] = {"gpus": int(gpus), "call": call + (" in a graph" if graph else "")}
        row["bytes"] = [*whole]
        for way in ways:
            row[way] = [
                [min(t[way]), statistics.median(t[way]), max(t[way])] for t in whole.values()
            ]
        rows.append(row)
    return rows, bad


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
            f"{gpus} GPUs, medians in us of {', '.join(text.WAYS.values())}, out of place, then how"
        )
        print("many times as fast jax_cxl is as the better of NCCL's ways (bold: slower)\n")
        print(text.table([row for row in rows if row["gpus"] == gpus]) + "\n")
    for line in bad:
        print(f"FAILED: {line}")
    if options.json:
        found = gpu_suite.head("python -m lab.nccl.nccl_tests_table") | {"failed": bad}
        results_file.write(options.json, found | {"results": rows})
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
