"""Runs PyTorch's own tests of collectives, with NCCL over host memory and with the pool.

    python -m lab.nccl.torch_tests FOLDER --json=tests.json

FOLDER contains these files of PyTorch's test/distributed: test_c10d_nccl.py, test_c10d_ops_nccl.py,
test_c10d_common.py, and the others that `_SELECTION` names. Its subfolder site can contain Python
packages that the tests need. Each test runs in a process of its own, several tests at a time. If
the test is skipped with NCCL, for example for lack of GPUs, it does not run with the pool. Prints a
line of JSON for each test, and at the end how many tests passed.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator

import torch

_LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "jax_cxl" / "_nccl" / "libnccl.so.2"
_WAYS = {
    "nccl": {"NCCL_P2P_DISABLE": "1"},
    "pool": {"JAX_CXL_NCCL_HOSTS": "all", "LD_PRELOAD": str(_LIBRARY), "NCCL_DEBUG": "WARN"},
}
# Patterns of the tests that run. The most informative tests come first, in case time runs out.
_SELECTION = [
    r"test_c10d_ops_nccl\.",
    r"test_c10d_nccl\.ProcessGroupNCCLGroupTest\.(?!test_nan)",
    r"test_c10d_nccl\.CommTest\.",
    r"test_distributed_spawn\..*(_cuda(_|$)|nccl|coalescing_manager|_object|get_future)",
    r"test_c10d_nccl\.(ProcessGroupNCCLInit|WorkHook|NcclProcessGroupWith\w*|SparseCollective)",
    r"test_c10d_spawn_nccl\.",
    r"test_c10d_nccl\.DistributedDataParallelTest\.(?!.*(_debug_|_grad_is_view))",
    r"test_distributed_spawn\..*(_SyncBatchNorm|test_ddp_(uneven|hook|native|broadcast|join))",
    r"test_c10d_nccl\.(NCCLTrace|Rendezvous|Timeout)",
    r"test_pg_wrapper\.ProcessGroupNCCLWrapperTest\.",
    r"test_c10d_nccl\.",
    r"test_distributed_spawn\..*(DistributedDataParallel|ddp|reduce|gather|group)",
]
_MODULES = list(dict.fromkeys(re.match(r"\w+", each)[0] for each in _SELECTION))
# Variables that test_distributed_spawn needs. Each test has a TEMP_DIR of its own.
_SPAWN = {"BACKEND": "nccl", "WORLD_SIZE": "2", "TEMP_DIR": tempfile.gettempdir()}
_ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt): |jax_cxl nccl: error")
_LOG = re.compile(r"^[A-Z]\d{4} \S+ \d+ \S+\]")  # what PyTorch writes before each line of a log
_SKIPPED = re.compile(r"^(OK|NO TESTS RAN) \(skipped=", re.MULTILINE)
_MOST_TEXT = 400


@dataclasses.dataclass
class Result:
    """How one test ended. `outcome` is ok, skipped, failed, slow (over its limit) or not run."""

    outcome: str
    seconds: float = 0.0
    error: str = ""


def _tests(suite: unittest.TestSuite) -> Iterator[str]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _tests(each)
        else:
            yield each.id()


def _selected(only: str) -> list[str]:
    """Returns the tests of `_SELECTION`, in its order, whose names match the pattern `only`."""
    names = [
        name
        for module in _MODULES
        for name in _tests(unittest.defaultTestLoader.loadTestsFromName(module))
    ]
    chosen = [name for each in _SELECTION for name in names if re.match(each, name)]
    return [name for name in dict.fromkeys(chosen) if re.search(only, name)]


def _error(output: str) -> str:
    """Returns the last error in the output of a test, and the few lines that explain it."""
    lines = [line for line in map(_bare, output.splitlines()) if line]
    at = max((i for i, line in enumerate(lines) if _ERROR.match(line)), default=len(lines) - 2)
    text = []
    for line in lines[max(at, 0) : at + 6]:
        if line.startswith(("---", "===", "Exception raised from", "To execute this test")):
            break
        text.append(line)
    return " | ".join(text)[:_MOST_TEXT]


def _bare(line: str) -> str:
    return _LOG.sub("", line).strip()


def _outcome(status: int, output: str) -> Result:
    if _SKIPPED.search(output):
        return Result("skipped")
    if status == 0:
        return Result("ok")
    died = f"signal {-status}: " if status < 0 else ""
    return Result("failed", error=died + _error(output))


def _run(name: str, way: str, path: str, limit: float) -> Result:
    """Runs the test `name` in one of `_WAYS`, and kills all its processes afterwards."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        for each in ("barrier", "test_dir", "init_dir"):
            (pathlib.Path(folder) / each).mkdir()
        environment = os.environ | _WAYS[way] | {"PYTHONPATH": path, "TEMP_DIR": folder}
        process = subprocess.Popen(
            [sys.executable, "-m", "unittest", name],
            env=environment,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(limit)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        text = output.read()
    result = Result("slow", error=_error(text)) if status is None else _outcome(status, text)
    result.seconds = round(time.monotonic() - began, 1)
    return result


class Report:
    """The results of all tests so far. Thread-safe."""

    def __init__(self, place: pathlib.Path | None) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, object]] = {}

    def add(self, name: str, results: dict[str, Result]) -> None:
        row: dict[str, object] = {}
        for way, result in results.items():
            row[way] = result.outcome
            if result.seconds:
                row[f"{way}_s"] = result.seconds
            if result.error:
                row[f"{way}_error"] = result.error
        with self._lock:
            self._rows[name] = row
            if row["nccl"] != "not run":
                print(json.dumps({"test": name} | row), flush=True)
            self._write()

    def summary(self) -> dict[str, object]:
        counts = {
            way: dict(collections.Counter(str(row[way]) for row in self._rows.values()))
            for way in _WAYS
        }
        differing = [name for name, row in self._rows.items() if row["nccl"] != row["pool"]]
        return {
            "torch": torch.__version__,
            "gpus": torch.cuda.device_count(),
            "tests": counts,
            "differing": [name for name in differing if self._rows[name]["pool"] != "not run"],
        }

    def _write(self) -> None:
        if self._place:
            self._place.write_text(json.dumps(self.summary() | {"results": self._rows}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="PyTorch's test/distributed")
    parser.add_argument("--json", type=pathlib.Path, help="where all results are written")
    parser.add_argument("--only", default="", help="a regular expression of names of tests")
    parser.add_argument("--seconds", type=float, default=280, help="for all tests (280)")
    parser.add_argument("--limit", type=float, default=60, help="seconds of a test (60)")
    parser.add_argument(
        "--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 3), help="tests at a time"
    )
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    if not _LIBRARY.exists():
        sys.exit(f"there is no {_LIBRARY}: install jax_cxl where nvcc is")
    folders = [str(options.folder.resolve()), str(options.folder.resolve() / "site")]
    path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.path[:0] = folders
    os.environ |= _SPAWN
    tests = _selected(options.only)
    report = Report(options.json)

    def compare(name: str) -> None:
        results = {}
        for way in _WAYS:
            limit = min(options.limit, deadline - time.monotonic())
            result = _run(name, way, path, limit) if limit > 0 else Result("not run")
            if result.outcome == "slow" and limit < options.limit:
                result = Result("not run")
            results[way] = result
            if result.outcome in ("skipped", "not run"):
                results["pool"] = Result(result.outcome)
                break
        report.add(name, results)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as jobs:
        list(jobs.map(compare, tests))
    print(json.dumps(report.summary()), flush=True)


if __name__ == "__main__":
    main()
