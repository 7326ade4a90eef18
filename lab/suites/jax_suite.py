"""Runs JAX's own tests with and without a takeover of every collective, and compares outcomes.

    python -m lab.suites.jax_suite ../jax [--files pmap_test.py,multiprocess/pjit_test.py]

The argument is a checkout of JAX, at the version that is installed. The script prints a table with
a line for each file of tests. It also prints each test whose outcome the takeover changes, with the
error of the test. If there is such a test, the exit status is 1.

Tests of one process have eight devices. Tests of several processes have four processes with two
devices each.
"""

import argparse
import json
import pathlib
import sys
import tempfile
from typing import Any

from lab.suites.jax_tests import runs
from lab.suites.jax_tests.runs import Outcome

_PROCESSES = 4
_FILES = (
    *("shard_map_test.py", "pmap_test.py", "ragged_collective_test.py"),
    *(
        f"multiprocess/{name}_test.py"
        for name in (
            *("all_gather", "all_reduce", "all_to_all", "array", "axis_index", "host_callback"),
            *("multihost_utils", "pjit", "pmap"),
        )
    ),
)
_ROW = "{:<38} {:>6} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}"


def main() -> int:
    """Runs the tests; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=pathlib.Path, help="a checkout of JAX")
    parser.add_argument("--files", default=",".join(_FILES), help="below its folder tests")
    parser.add_argument("--chosen", default="", help="which tests, as pytest's option -k has it")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a test may take")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="file for the results")
    options = parser.parse_args()
    print(
        _ROW.format("file", "tests", "passed", "failed", "skipped", "taken", "left", "calls"),
        flush=True,
    )
    rows, differences = [], []
    for name in options.files.split(","):
        with tempfile.TemporaryDirectory() as folder:
            outcomes = [
                _run(options, name, take_over, pathlib.Path(folder)) for take_over in (False, True)
            ]
        for take_over, outcome in zip((False, True), outcomes, strict=True):
            rows.append(_row(name, take_over, outcome))
            print(_ROW.format(*_cells(rows[-1])), flush=True)
        differences += _differences(name, *outcomes)
        if options.json:
            options.json.write_text(
                json.dumps({"results": rows, "differences": differences}, indent=1) + "\n"
            )
    for difference in differences:
        print("{file} {test}: {without}, {with}: {error}".format(**difference))
    return 1 if differences else 0


def _run(options: argparse.Namespace, name: str, take_over: bool, folder: pathlib.Path) -> Outcome:
    file = options.path.resolve() / "tests" / name
    if "multiprocess" in name:
        return runs.in_several_processes(file, take_over, folder, options.limit, _PROCESSES)
    return runs.in_one_process(file, take_over, folder, options.limit, options.chosen)


def _row(name: str, take_over: bool, outcome: Outcome) -> dict[str, Any]:
    return {
        "file": name,
        "taken over": take_over,
        "tests": len(outcome.tests),
        "passed": outcome.count("passed"),
        "failed": outcome.count("failed", "ended the process"),
        "skipped": outcome.count("skipped"),
        "taken": outcome.taken,
        "left": outcome.left,
        "calls": outcome.calls,
    }


def _cells(row: dict[str, Any]) -> list[Any]:
    name, take_over, *numbers = row.values()
    return [f"{name}{' taken over' if take_over else ''}", *numbers]


def _differences(name: str, without: Outcome, with_it: Outcome) -> list[dict[str, str]]:
    """Returns a record of each test whose outcome differs with the takeover."""
    found = []
    for test in without.tests.keys() | with_it.tests.keys():
        before, _ = without.tests.get(test, ("not there", ""))
        after, error = with_it.tests.get(test, ("not there", ""))
        if before != after:
            found.append(
                {"file": name, "test": test, "without": before, "with": after, "error": error}
            )
    return sorted(found, key=lambda difference: difference["test"])


if __name__ == "__main__":
    sys.exit(main())
