"""Runs tests in a copy of the checkout, with one of its modules changed."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from cosmic_ray import mutating, plugins
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

from lab.suites.mutation import choose

_Item = TypeVar("_Item")
_HERE = pathlib.Path(__file__).parent
_CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
# Tests that run without JAX's compilation cache. They check what happens when a program is
# compiled, and a program from the cache is not compiled again.
_WITHOUT_CACHE = ("tests/takeover", "tests/jobs")

# How many tests run first, by themselves. They notice most mutants. Pytest then need not import the
# files of all other tests, which takes longer.
_FIRST = 3

_JOB_SECONDS = 900  # A limit: the tests of jobs of a part take two minutes.


class Worker:
    """A copy of the checkout, and a server that runs its tests (mutation/server.py).

    Attributes:
      tree: the copy.
    """

    def __init__(self, tree: pathlib.Path, cache: pathlib.Path):
        """Starts the server.

        Args:
          tree: the copy.
          cache: a folder for programs that JAX has compiled, which copies may share.
        """
        self.tree, self._cache = tree, cache
        # checked-hash: Python compares the hash of the source. By default it compares time and
        # size, which a mutant may leave unchanged.
        compiled = ["--invalidation-mode", "checked-hash", str(tree / "jax_cxl")]
        subprocess.run([sys.executable, "-m", "compileall", "-q", *compiled], check=True)
        path = os.pathsep.join(map(str, (_HERE / "site", tree)))
        self._server = subprocess.Popen(
            [sys.executable, str(_HERE / "server.py")],
            cwd=tree,
            env=os.environ
            | {
                "PYTHONPATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
                "JAX_PLATFORMS": "cpu",
                "JAX_CXL_TEST_SOON": "5",
                "JAX_CXL_TEST_SECONDS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """Ends the server."""
        self._server.communicate()

    def cover(self, tests: pathlib.Path, kept: pathlib.Path) -> None:
        """Runs the tests of a file, and writes the lines that they execute to the file `kept`."""
        command = [str(tests), "-p", "lab.suites.mutation.covering"]
        answer = self._run(command, 3600, {"JAX_CXL_COVERING": str(kept)})
        print(f"{tests}: {answer['output'].rstrip().splitlines()[-1:]}", flush=True)

    def with_tests(self, spec: MutationSpec, covered: choose.Covered, seconds: float) -> WorkResult:
        """Runs tests of one process on a mutant; returns whether they notice it."""
        tests = covered.tests_of(spec, seconds)
        first, rest = tests[:_FIRST], tests[_FIRST:]
        batches = [
            first,
            [test for test in rest if not test.startswith(_WITHOUT_CACHE)],
            [test for test in rest if test.startswith(_WITHOUT_CACHE)],
        ]
        # Only a mutant that hangs reaches this limit, even on a busy machine.
        limit = 150 + 10 * sum(covered.seconds[test] for test in tests)
        with _mutated(self.tree, spec) as diff:
            for batch in filter(None, batches):
                answer = self._run(["-x", *batch], limit)
                if answer["status"] != 0:
                    return _result("killed", answer, diff)
            if not tests:
                return WorkResult(worker_outcome=WorkerOutcome.NO_TEST, diff=diff)
            return _result("survived", answer, diff)

    def with_jobs(self, spec: MutationSpec) -> WorkResult:
        """Runs tests of jobs on a mutant; returns whether they notice it.

        On a busy machine a test that starts a job sometimes fails by chance. So the tests that
        failed run again, and the mutant counts as noticed only if one of them fails again.
        """
        tests: Sequence[str] = choose.part_of(spec.module_path).jobs
        with _mutated(self.tree, spec) as diff:
            for _ in range(2):
                answer = self._run(["-x", *tests], _JOB_SECONDS)
                if answer["status"] == 0:
                    return _result("survived", answer, diff)
                tests = re.findall(r"^FAILED (.*?)(?: - |$)", answer["output"], re.M) or tests
            return _result("killed", answer, diff)

    def _run(
        self, arguments: list[str], seconds: float, environment: dict[str, str] | None = None
    ) -> dict[str, Any]:
        environment = environment or {}
        if not any(each.startswith(_WITHOUT_CACHE) for each in arguments):
            environment |= _CACHE | {"JAX_COMPILATION_CACHE_DIR": str(self._cache)}
        request = {"arguments": arguments, "seconds": seconds, "environment": environment}
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        answer = json.loads(self._server.stdout.readline())
        if answer["status"] is None:
            answer["output"] += f"\nno end within {seconds:.0f} seconds"
        return answer


class Crew:
    """Workers in several copies, which run at the same time."""

    def __init__(self, trees: Sequence[pathlib.Path], cache: pathlib.Path):
        """Starts a worker in each copy."""
        self._idle: queue.Queue[Worker] = queue.Queue()
        self._count = len(trees)
        for tree in trees:
            self._idle.put(Worker(tree, cache))

    def close(self) -> None:
        """Ends all workers."""
        for _ in range(self._count):
            self._idle.get().close()

    def each(self, items: Iterable[_Item], run: Callable[[Worker, _Item], None]) -> None:
        """Calls `run` once for each item, with the item and a worker that is idle."""

        def with_worker(item: _Item) -> None:
            worker = self._idle.get()
            try:
                run(worker, item)
            finally:
                self._idle.put(worker)

        with concurrent.futures.ThreadPoolExecutor(self._count) as threads:
            list(threads.map(with_worker, items))


@contextlib.contextmanager
def _mutated(tree: pathlib.Path, spec: MutationSpec) -> Iterator[str]:
    """Makes the change `spec` in the copy `tree` inside the context, whose value is the diff."""
    operator = plugins.get_operator(spec.operator_name)(**spec.operator_args)
    changed = mutating.use_mutation(tree / spec.module_path, operator, spec.occurrence)
    with changed as (before, after):
        yield "\n".join(mutating._make_diff(before, after, spec.module_path))


def _result(outcome: str, answer: dict[str, Any], diff: str) -> WorkResult:
    return WorkResult(
        worker_outcome=WorkerOutcome.NORMAL,
        test_outcome=TestOutcome(outcome),
        output=answer["output"],
        diff=diff,
    )
