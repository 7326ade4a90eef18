"""Fails if collectives have become slower: compares two results files of the benchmarks.

    python benchmarks/check_regression.py BASELINE.json NEW.json [--tolerance 0.25]

Compares the medians of results that are in both files, with the same backend, operation, size,
dtype and number of ranks. A faster result is never an error. The script does not compare the
machines, or their load.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

_KEY = ("backend", "op", "bytes", "dtype", "ranks")
_ROW = "{:<9} {:<14} {:>10} {:>9} {:>5} {:>12} {:>12} {:>7}  {}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 if a result is slower or wrong, or 2 if there is nothing to compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("baseline", type=pathlib.Path, metavar="BASELINE.json")
    parser.add_argument("new", type=pathlib.Path, metavar="NEW.json")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.25,
        metavar="SHARE",
        help="how much slower is accepted (default: 0.25, a quarter)",
    )
    parser.add_argument(
        "--backend", metavar="NAME", help="compare only this one, for example jax_cxl"
    )
    options = parser.parse_args(arguments)
    if options.tolerance < 0:
        parser.error("--tolerance must not be negative")
    try:
        baseline, new = _read(options.baseline), _read(options.new)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"not a results file: {error}")
    keys = [
        key
        for key in baseline
        if key in new and options.backend in (None, key[_KEY.index("backend")])
    ]
    if not keys:
        print("The files have no result in common.", file=sys.stderr)
        return 2
    return 1 if _compare(baseline, new, keys, options.tolerance) else 0


def _read(path: pathlib.Path) -> dict[tuple, dict]:
    results = json.loads(path.read_text())["results"]
    return {tuple(result[name] for name in _KEY): result for result in results}


def _compare(
    baseline: dict[tuple, dict], new: dict[tuple, dict], keys: list[tuple], tolerance: float
) -> int:
    """Prints both times of each result in `keys`; returns how many results are slower or wrong."""
    print(_ROW.format(*_KEY, "baseline us", "new us", "ratio", "").rstrip())
    failures = 0
    for key in keys:
        old_us, new_us = (results[key]["time_us"]["median"] for results in (baseline, new))
        verdicts = []
        if new_us > old_us * (1 + tolerance):
            verdicts.append("SLOWER")
        if new[key]["wrong"]:
            verdicts.append("WRONG")
        failures += bool(verdicts)
        figures = (f"{old_us:.2f}", f"{new_us:.2f}", f"{new_us / old_us:.2f}")
        print(_ROW.format(*key, *figures, " ".join(verdicts)).rstrip())
    print(
        f"{failures} of {len(keys)} results slower than the tolerance of {tolerance:.0%}, or wrong"
    )
    return failures


if __name__ == "__main__":
    sys.exit(main())
