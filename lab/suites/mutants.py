"""Changes the package at random places, and shows which changes no test notices.

    pip install cosmic-ray coverage
    python -m lab.suites.mutants --sample=300 --work=DIR

Each mutant is one change that cosmic-ray makes in a copy of the checkout: of an operator, a number
or a condition, in operations, the lowering, the store, tables, the tier or the takeover. For each
mutant, the script first runs those tests of one process that execute the changed statement. The
mutant survives if all of them pass. After that, for each survivor, the script runs the tests that
start jobs, if they belong to the part of the package that the mutant changes
(mutation/choose.py). The script prints the difference of each mutant that survives these tests too.
Such a mutant is either equivalent to the original, or a test is missing. mutation/equivalent.toml
has the mutants that a person has judged to be equivalent.

DIR keeps the copies, a record of which test executes which line, and the results as cosmic-ray's
sessions (`cr-report DIR/tests.sqlite`, `cr-report DIR/jobs.sqlite`). The same command continues a
run that was stopped. `--survivors` runs the survivors again, with tests that have been written
since.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, WorkItem, WorkResult

from lab.suites.mutation import choose, report, sample
from lab.suites.mutation.worker import Crew, Worker

_ROOT = pathlib.Path(__file__).parents[2]


def main() -> int:
    """Runs the mutants; returns 1 if one survives that nobody has judged to be equivalent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time (default: 2)")
    parser.add_argument("--seconds", type=float, default=40, help="of tests of one process")
    parser.add_argument(
        "--only", default="", metavar="PREFIX", help="samples only modules whose paths begin so"
    )
    parser.add_argument("--no-jobs", action="store_true", help="leaves out the tests of jobs")
    parser.add_argument("--survivors", action="store_true", help="runs the survivors again")
    options = parser.parse_args()
    work: pathlib.Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    trees = [_copy(work / f"tree-{number}") for number in range(options.processes)]
    os.chdir(trees[0])
    with (
        use_db(work / "tests.sqlite") as tests,
        use_db(work / "jobs.sqlite") as jobs,
        contextlib.closing(Crew(trees, work / "cache")) as crew,
    ):
        items = _sampled((tests, jobs), options.sample, options.seed, options.only, work)
        mutants = {item.job_id: item.mutations[0] for item in items}

        def survivors() -> list[str]:
            return report.survivors(mutants, dict(tests.results), dict(jobs.results))

        again = survivors() if options.survivors else []
        done = dict(tests.results).keys() - again
        pending = {name: mutants[name] for name in mutants if name not in done}
        covered = _measure(pending.values(), crew, work)
        _run(tests, pending, crew, lambda one, spec: one.with_tests(spec, covered, options.seconds))
        done = dict(jobs.results).keys() - again
        pending = {name: mutants[name] for name in survivors() if name not in done}
        if not options.no_jobs:
            _run(jobs, pending, crew, Worker.with_jobs)
        return report.report(mutants, dict(tests.results), dict(jobs.results))


def _sampled(
    sessions: Iterable[WorkDB], count: int, seed: int, only: str, work: pathlib.Path
) -> list[WorkItem]:
    """Returns the sample, and adds it to the sessions. A new sample takes a minute to make.

    Args:
      sessions: the sessions, which keep the mutants of all samples.
      count: how many mutants.
      seed: the seed of the random choice.
      only: how the paths of the modules begin.
      work: a folder, which keeps the names of the mutants.
    """
    kept = work / f"sample-{count}-{seed}-{only.replace('/', '-')}.json"
    known = {item.job_id: item for session in sessions for item in session.work_items}
    if not kept.exists():
        modules = [
            module
            for part in choose.PARTS
            for folder in part.folders
            for module in pathlib.Path("jax_cxl", folder).rglob("*.py")
            if str(module).startswith(only)
        ]
        items = sample.sample(modules, count, seed)
        for session in sessions:
            session.add_work_items(item for item in items if item.job_id not in known)
        kept.write_text(json.dumps([item.job_id for item in items]))
        known |= {item.job_id: item for item in items}
    return [known[job] for job in json.loads(kept.read_text())]


def _copy(tree: pathlib.Path) -> pathlib.Path:
    """Copies the checkout and its compiled modules to the folder `tree`; returns the folder."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=_ROOT, check=True, capture_output=True, text=True).stdout
    compiled = (path.relative_to(_ROOT) for path in _ROOT.glob("*/**/*.so"))
    native = [str(path) for path in compiled if path.parts[0] in ("jax_cxl", "tests")]
    for name in (*names.split("\n")[:-1], *native):
        if (_ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, tree / name)
    return tree


def _measure(mutants: Iterable[MutationSpec], crew: Crew, work: pathlib.Path) -> choose.Covered:
    """Returns which tests execute which lines, for the tests of these mutants.

    The folder `lines` keeps the results. A test file runs only if it has no result yet, or if the
    file or the package has changed since.
    """
    folders = {folder for spec in mutants for folder in choose.part_of(spec.module_path).tests}
    package = hashlib.sha256()
    for module in sorted(pathlib.Path("jax_cxl").rglob("*.py")):
        package.update(module.read_bytes())
    files = {}
    for file in sorted(
        file for folder in folders for file in pathlib.Path(folder).rglob("*_test.py")
    ):
        of_both = package.copy()
        of_both.update(file.read_bytes())
        name = f"{'-'.join(file.parts)}-{of_both.hexdigest()[:8]}.json"
        files[file] = work / "lines" / name
    (work / "lines").mkdir(exist_ok=True)
    missing = [file for file in files if not files[file].exists()]
    crew.each(missing, lambda one, file: one.cover(file, files[file]))
    return choose.Covered(list(files.values()))


def _run(
    session: WorkDB,
    mutants: dict[str, MutationSpec],
    crew: Crew,
    result: Callable[[Worker, MutationSpec], WorkResult],
) -> None:
    """Calls `result` for each mutant with an idle worker; adds what it returns to `session`."""
    lock = threading.Lock()

    def run(one: Worker, name: str) -> None:
        found = result(one, mutants[name])
        with lock:
            session.set_result(name, found)
            print(f"{report.outcome(found):<9} {name}", flush=True)

    crew.each(mutants, run)


if __name__ == "__main__":
    sys.exit(main())
