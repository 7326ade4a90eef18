"""Runs the tests on pools of one kind with many seeds, and records the results.

    python -m lab.suites.pool_suite incoherent --seeds 20 --build build/dev --json FILE
    python -m lab.suites.pool_suite flush --pytest 'tests/ops/*_test.py'

It runs the C++ tests that take their pool from JAX_CXL_TEST_POOL (cc/testing/pool/chosen_pool.h).
The other C++ tests open no pool, or choose it themselves. It also runs the Python tests that
`--pytest` names, by default all that tests/conftest.py does not ignore. All seeds share JAX's
compilation cache, which only saves time.
"""

import argparse
import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from jax_cxl._commands.measuring import report, results_file

_ROOT = pathlib.Path(__file__).parents[2]
_CC_TESTS = "^(comm(_health|_order|_record)?|testing_(faults|fuzz|soak))_tests$"
_CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 if a test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pool", choices=("coherent", "uncached", "flush", "incoherent"))
    parser.add_argument("--seeds", type=int, default=1, help="how many (default: 1)")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--build", type=pathlib.Path, help="folder of the C++ tests; none without")
    parser.add_argument(
        "--pytest", nargs="*", default=["tests"], metavar="FILE", help="by default all; may be none"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            runs.append({"pool": options.pool, "seed": seed} | _run(options, seed, cache))
            print(json.dumps(runs[-1]), flush=True)
            if options.json:
                command = results_file.command_line(
                    "python -m lab.suites.pool_suite", arguments or sys.argv[1:]
                )
                found = report.header(load, command) | {"runs": runs}
                results_file.write(options.json, found)
    return int(any(run[part]["failures"] for run in runs for part in ("cc", "python")))


def _run(options: argparse.Namespace, seed: int, cache: str) -> dict[str, Any]:
    environment = os.environ | {
        "JAX_CXL_TEST_POOL": options.pool,
        "JAX_CXL_TEST_SEED": str(seed),
    }
    cc: list[str] = []
    if options.build:
        cc = ["ctest", "--test-dir", str(options.build), "-j2", "--output-on-failure"]
        cc += ["--timeout", "300", "-R", _CC_TESTS]
    files = sorted(
        file for pattern in options.pytest for file in glob.glob(pattern, root_dir=_ROOT)
    )
    every = ("-m", "long or not long")
    python = [sys.executable, "-m", "pytest", "-q", *every, *files] if files else []
    with tempfile.TemporaryDirectory() as results:
        return {
            "cc": _count(cc, environment | {"GTEST_OUTPUT": f"xml:{results}/"}, results),
            "python": _count(
                [*python, f"--junitxml={results}/pytest.xml"] if python else [],
                environment | _CACHE | {"JAX_COMPILATION_CACHE_DIR": cache},
                results,
            ),
        }


def _count(command: list[str], environment: dict[str, str], results: str) -> dict[str, Any]:
    """Runs a command whose tests write JUnit files to the folder `results`; counts the outcomes.

    Removes the files afterwards.
    """
    start = time.monotonic()
    failures: list[str] = []
    count: Counter[str] = Counter()
    if command:
        done = subprocess.run(command, env=environment, cwd=_ROOT, capture_output=True, text=True)
        for file in sorted(pathlib.Path(results).glob("*.xml")):
            for case in ElementTree.parse(file).iter("testcase"):
                name = f"{case.get('classname')}.{case.get('name')}"
                problem = [kind for kind in ("failure", "error") if case.find(kind) is not None]
                skipped = case.find("skipped") is not None
                count["skipped" if skipped else "failed" if problem else "passed"] += 1
                failures += [name] if problem else []
            file.unlink()
        if done.returncode and not failures:  # A crash leaves no file.
            failures.append(done.stdout[-2000:] + done.stderr[-2000:])
        if failures:
            print(done.stdout, done.stderr, file=sys.stderr)
    return {
        "passed": count["passed"],
        "skipped": count["skipped"],
        "failures": failures,
        "seconds": round(time.monotonic() - start, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
