"""Runs files of JAX's tests, in one process or in several."""

import collections
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from typing import Any

from lab.suites.jax_tests import recorder, worker

_HERE = pathlib.Path(__file__).resolve().parent
# How many processes run a file of tests, at most. When a test ends its process, a new process runs
# the tests after it.
_MOST_RESTARTS = 20


@dataclasses.dataclass
class Outcome:
    """The outcomes of the tests of a file.

    Attributes:
      tests: "passed", "failed", "skipped" or "ended the process", and the error, by test.
      taken: how many collectives of the compiled programs go through the pool.
      left: how many collectives of the compiled programs XLA still executes.
      calls: how many collectives ran through the pool, summed over the ranks.
    """

    tests: dict[str, tuple[str, str]]
    taken: int = 0
    left: int = 0
    calls: int = 0

    def count(self, *outcomes: str) -> int:
        """Returns how many tests had one of the given outcomes."""
        return sum(outcome in outcomes for outcome, _ in self.tests.values())


def in_one_process(
    file: pathlib.Path, take_over: bool, folder: pathlib.Path, limit: float, chosen: str
) -> Outcome:
    """Runs a file of tests on eight devices of one process.

    Args:
      file: a file of tests in JAX's checkout.
      take_over: whether collectives are taken over.
      folder: where results are written.
      limit: seconds that a test may take.
      chosen: an expression for pytest's option -k, which chooses tests; empty: all.
    """
    record = folder / f"{file.stem}-{'with' if take_over else 'without'}.jsonl"
    command = [
        *(
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "lab.suites.jax_tests.recorder",
            f"--record={record}",
        ),
        *("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(file.parent)),
        *("-o", f"faulthandler_timeout={limit}", "-o", "faulthandler_exit_on_timeout=true"),
        *(["--take-over"] if take_over else []),
        *(["-k", chosen] if chosen else []),
        str(file),
    ]
    environment = _environment(JAX_NUM_CPU_DEVICES="8")
    for _ in range(_MOST_RESTARTS):
        known = len(recorder.read(record))
        with record.with_suffix(".log").open("a") as log:
            code = subprocess.run(command, env=environment, stdout=log, stderr=log).returncode
        # pytest's exit status. 0: all tests passed; 1: some failed, or one took too long and ended
        # the process; 5: no test was left to run.
        found = list(recorder.read(record).values())
        ended = bool(found) and found[-1]["outcome"] == recorder.ENDED
        if code == 5 or len(found) == known or (code in (0, 1) and not ended):
            break
    records = recorder.read(record).values()
    totals = collections.Counter[str]()
    for found in records:
        totals.update({name: found.get(name, 0) for name in ("taken", "left", "calls")})
    tests = {found["test"]: (found["outcome"], found.get("error", "")) for found in records}
    return Outcome(tests, **totals)


def in_several_processes(
    file: pathlib.Path, take_over: bool, folder: pathlib.Path, limit: float, processes: int
) -> Outcome:
    """Runs a file of tests in several processes; a test fails if it fails in one of them."""
    folder = folder / f"{file.stem}-{'with' if take_over else 'without'}"
    folder.mkdir(parents=True)
    environment = _environment(
        JAX_NUM_CPU_DEVICES="2",  # With one, most tests of pjit and arrays are skipped.
        TEST_UNDECLARED_OUTPUTS_DIR=str(folder),
        **{worker.FILE: str(file), worker.FOLDER: str(folder)},
        **{worker.TAKE_OVER: str(int(take_over))},
    )
    command = [sys.executable, str(_HERE / "worker.py"), f"--num_processes={processes}"]
    # JAX's default limits are too short for a machine with fewer cores than processes.
    for name in ("initialization", "barrier", "shutdown", "heartbeat"):
        command.append(f"--{name}_timeout={round(limit)}")
    with (folder / "log").open("w") as log:
        job = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            job.wait(10 * limit)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait()
    tests: dict[str, tuple[str, str]] = {}
    totals = collections.Counter[str]()
    for process in range(processes):
        _read_xml(folder / f"{process}.xml", tests)
        path = folder / f"{process}.json"
        totals.update(json.loads(path.read_text()) if path.exists() else {})
    if not tests:
        tests[file.stem] = ("ended the process", "a process wrote no results")
    return Outcome(tests, **totals)


def _read_xml(path: pathlib.Path, tests: dict[str, tuple[str, str]]) -> None:
    """Adds the outcomes of one process to `tests`, in which the worst outcome of a test counts."""
    if not path.exists():
        return
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        problem = next((part for part in case if part.tag in ("failure", "error")), None)
        if problem is not None:
            tests[name] = ("failed", (problem.get("message") or "").splitlines()[0][:300])
        elif case.get("status") == "notrun" or case.find("skipped") is not None:
            tests.setdefault(name, ("skipped", ""))
        elif tests.get(name, ("skipped", ""))[0] == "skipped":
            tests[name] = ("passed", "")


def _environment(**variables: Any) -> dict[str, str]:
    path = os.pathsep.join([str(_HERE.parents[2]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **variables}
