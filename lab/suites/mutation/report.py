"""Reports which mutants the tests noticed."""

from collections.abc import Mapping

from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult

from lab.suites.mutation import judged

Results = Mapping[str, WorkResult]


def outcome(result: WorkResult) -> str:
    """Returns "killed", "survived", or "no test" if no test executes the changed statement."""
    return result.test_outcome.value if result.test_outcome else "no test"


def survivors(
    mutants: Mapping[str, MutationSpec], by_tests: Results, by_jobs: Results
) -> list[str]:
    """Returns the names of mutants that have run and survived, without equivalent ones.

    Args:
      mutants: the mutants by name.
      by_tests: the results of tests of one process.
      by_jobs: the results of tests of jobs, for mutants that survived the tests of one process.
    """
    equivalent = judged.equivalent()
    return [
        name
        for name in mutants
        if name in by_tests
        and not _fell(by_tests, name)
        and not _fell(by_jobs, name)
        and judged.Change.of(mutants[name], by_tests[name]) not in equivalent
    ]


def report(mutants: Mapping[str, MutationSpec], by_tests: Results, by_jobs: Results) -> int:
    """Prints the survivors and the figures, and returns 1 if there are survivors."""
    equivalent = judged.equivalent()
    ran = [name for name in mutants if name in by_tests]
    of_tests = [name for name in ran if _fell(by_tests, name)]
    of_jobs = [name for name in ran if _fell(by_jobs, name)]
    lived = survivors(mutants, by_tests, by_jobs)
    for name in sorted(lived):
        jobs = "" if name in by_jobs else ", without tests of jobs"
        print(f"\n{outcome(by_tests[name])}{jobs}: {name}\n{by_tests[name].diff}")
    for name in (*of_tests, *of_jobs):
        if judged.Change.of(mutants[name], by_tests[name]) in equivalent:
            print(f"\nfell, but is in mutation/equivalent.toml: {name}")
    others = len(of_tests) + len(of_jobs) + len(lived)
    print(
        f"\n{len(ran)} mutants, {len(ran) - others} of them equivalent. Of the other {others},"
        f" tests of one process noticed {len(of_tests)}, and tests of jobs {len(of_jobs)} more:"
        f" {100 * (1 - len(lived) / max(others, 1)):.1f}%."
    )
    return int(bool(lived))


def _fell(results: Results, name: str) -> bool:
    return name in results and results[name].test_outcome == TestOutcome.KILLED
