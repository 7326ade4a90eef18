"""Changes the package at random places, and shows which changes no test notices.

    pip install cosmic-ray coverage
    python benchmarks/suites/mutants.py --sample=300 --work=DIR

Each mutant is one change by cosmic-ray (an operator, a number, a condition) in operations, the
lowering, the store or the takeover, in a copy of the checkout. First run the tests that execute
the changed statement. If the mutant survives, the tests of jobs of that part run.
The command prints each survivor with its difference. A survivor is either equivalent, or
a test is missing.

DIR keeps the copies, which test executes which line, and the results as cosmic-ray's session
(`cr-report DIR/session.sqlite`). The same command continues a run that was stopped.
`--survivors` runs the survivors again, with tests that have been written since.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import threading
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from cosmic_ray import mutating, plugins
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult
from mutation import choose, sample

_ROOT = pathlib.Path(__file__).parents[2]
_PARTS = pathlib.Path(__file__).parent / "mutation"
_CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
# Compiled programs have in them what these tests are about.
_WITHOUT_CACHE = ("tests/takeover", "tests/jobs")

# Most mutants fall by these tests. More test files take longer to import.
_FIRST = 3


def main() -> int:
    """Runs the mutants; returns 1 if one survives."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time (default: 2)")
    parser.add_argument("--seconds", type=float, default=40, help="of tests without jobs, a mutant")
    parser.add_argument("--only", default="", metavar="PREFIX", help="of modules, jax_cxl/_store")
    parser.add_argument("--no-jobs", action="store_true", help="leaves out the tests of jobs")
    parser.add_argument("--survivors", action="store_true", help="runs the survivors again")
    options = parser.parse_args()
    work: pathlib.Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    trees = [_copy(work / f"tree-{number}") for number in range(options.processes)]
    os.chdir(trees[0])
    with use_db(work / "session.sqlite") as session:
        items = _sampled(session, options.sample, options.seed, work)
        items = [item for item in items if item.job_id.startswith(options.only)]
        parts = {choose.part_of(item.mutations[0].module_path) for item in items}
        covered = choose.Covered(_measure(parts, work, trees[0]))
        results = dict(session.results)
        survivors = {job for job, result in results.items() if _outcome(result) != "killed"}
        again = survivors if options.survivors else set()
        pending = [item for item in items if item.job_id not in results or item.job_id in again]
        _run_all(session, pending, trees, covered, options, work)
        return _report(session, {item.job_id for item in items})


def _sampled(session: WorkDB, count: int, seed: int, work: pathlib.Path) -> list[WorkItem]:
    """Returns the sample, and adds it to the session. Making it takes a minute."""
    kept = work / f"sample-{count}-{seed}.json"
    known = {item.job_id: item for item in session.work_items}
    if not kept.exists():
        modules = [
            module
            for part in choose.PARTS
            for folder in part.folders
            for module in pathlib.Path("jax_cxl", folder).rglob("*.py")
        ]
        items = sample.sample(modules, count, seed)
        session.add_work_items(item for item in items if item.job_id not in known)
        kept.write_text(json.dumps([item.job_id for item in items]))
        known |= {item.job_id: item for item in items}
    return [known[job] for job in json.loads(kept.read_text())]


def _copy(tree: pathlib.Path) -> pathlib.Path:
    """Makes a folder a copy of the checkout, with its compiled modules."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=_ROOT, check=True, capture_output=True, text=True).stdout
    compiled = (path.relative_to(_ROOT) for path in _ROOT.glob("*/**/*.so"))
    native = [str(path) for path in compiled if path.parts[0] in ("jax_cxl", "tests")]
    for name in (*names.split("\n")[:-1], *native):
        if (_ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, tree / name)
    return tree


def _environment(tree: pathlib.Path) -> dict[str, str]:
    path = os.pathsep.join(map(str, (_PARTS / "site", tree, _PARTS.parent)))
    return os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}


def _measure(parts: set[choose.Part], work: pathlib.Path, tree: pathlib.Path) -> list[pathlib.Path]:
    """Returns files that say which test executes which line. Tests must pass to count."""
    files = []
    for folder in sorted({folder for part in parts for folder in part.tests}):
        files.append(work / f"{folder.replace('/', '-')}.json")
        if files[-1].exists():
            continue
        environment = _environment(tree) | {"JAX_CXL_COVERING": str(files[-1])}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "mutation.covering", folder]
        subprocess.run(command, cwd=tree, env=environment, check=False)
    return files


def _run_all(
    session: WorkDB,
    items: list[WorkItem],
    trees: list[pathlib.Path],
    covered: choose.Covered,
    options: argparse.Namespace,
    work: pathlib.Path,
) -> None:
    workers: queue.Queue[_Worker] = queue.Queue()
    for tree in trees:
        workers.put(_Worker(tree, work / "cache"))
    lock = threading.Lock()

    def run(item: WorkItem) -> None:
        worker = workers.get()
        try:
            result = worker.result(item, covered, options.seconds, not options.no_jobs)
        finally:
            workers.put(worker)
        with lock:
            session.set_result(item.job_id, result)
            print(f"{_outcome(result):<9} {item.job_id}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(len(trees)) as threads:
        list(threads.map(run, items))
    for _ in trees:
        workers.get().close()


class _Worker:
    """A copy of the checkout, and a server that runs its tests (mutation/server.py)."""

    def __init__(self, tree: pathlib.Path, cache: pathlib.Path):
        self._tree, self._cache = tree, cache
        self._server = subprocess.Popen(
            [sys.executable, str(_PARTS / "server.py")],
            cwd=tree,
            env=_environment(tree) | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """Ends the server."""
        self._server.communicate()

    def result(
        self, item: WorkItem, covered: choose.Covered, seconds: float, jobs: bool
    ) -> WorkResult:
        """Returns whether tests notice a mutant."""
        (spec,) = item.mutations
        tests = covered.tests_of(spec, seconds)
        if not tests and not jobs:
            return WorkResult(worker_outcome=WorkerOutcome.NO_TEST, output="", diff="")
        first, rest = tests[:_FIRST], tests[_FIRST:]
        batches = [
            first,
            [test for test in rest if not test.startswith(_WITHOUT_CACHE)],
            [test for test in rest if test.startswith(_WITHOUT_CACHE)],
            list(choose.part_of(spec.module_path).jobs) if jobs else [],
        ]
        limit = 120 + 5 * sum(covered.seconds[test] for test in tests) + (900 if jobs else 0)
        module = self._tree / spec.module_path
        for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*"):
            compiled.unlink()
        operator = plugins.get_operator(spec.operator_name)(**spec.operator_args)
        output = ""
        with mutating.use_mutation(module, operator, spec.occurrence) as (before, after):
            diff = "\n".join(mutating._make_diff(before, after, spec.module_path))
            for batch in filter(None, batches):
                answer = self._ask(batch, limit)
                output = answer["output"]
                if answer["status"] != 0:
                    break
        survived = answer["status"] == 0
        return WorkResult(
            worker_outcome=WorkerOutcome.NORMAL,
            test_outcome=TestOutcome.SURVIVED if survived else TestOutcome.KILLED,
            output=output,
            diff=diff,
        )

    def _ask(self, tests: list[str], seconds: float) -> dict[str, Any]:
        environment = {}
        if not any(test.startswith(_WITHOUT_CACHE) for test in tests):
            environment = _CACHE | {"JAX_COMPILATION_CACHE_DIR": str(self._cache)}
        request = {"tests": tests, "seconds": seconds, "environment": environment}
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return json.loads(self._server.stdout.readline())


def _outcome(result: WorkResult) -> str:
    return result.test_outcome.value if result.test_outcome else "no test"


def _report(session: WorkDB, jobs: set[str]) -> int:
    results = {job: result for job, result in session.results if job in jobs}
    unnoticed = sorted(job for job in results if _outcome(results[job]) != "killed")
    for job in unnoticed:
        print(f"\n{_outcome(results[job])}: {job}\n{results[job].diff}")
    print(f"\n{len(results)} mutants, {len(results) - len(unnoticed)} noticed by tests")
    return int(bool(unnoticed))


if __name__ == "__main__":
    sys.exit(main())
