"""A plugin of pytest: records which tests execute which lines of the package.

    JAX_CXL_COVERING=FILE python -m pytest -p lab.suites.mutation.covering tests/ops

It runs at most four cases of each test function, because more cases seldom execute other lines.

It writes a JSON object to FILE: `seconds` has the duration of each test that passed. `lines` has,
for each of these tests and each module, the numbers of the lines that the test executes. A line
that only the import of its module executes belongs to no test.
"""

import collections
import json
import os
import pathlib
import random
from collections.abc import Iterator

import coverage
import pytest

_coverage = coverage.Coverage(data_file=None, source=["jax_cxl"], config_file=False)
_coverage.start()
_seconds: dict[str, float] = collections.defaultdict(float)
_not_passed: set[str] = set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases = collections.defaultdict(list)
    for item in items:
        # absl names the cases of a test by the test's name and a number at the end.
        cases[item.nodeid.partition("[")[0].rstrip("0123456789")].append(item)
    kept = {
        item for each in cases.values() for item in random.Random(0).sample(each, min(4, len(each)))
    }
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _coverage.switch_context(item.nodeid)
    found = yield
    _coverage.switch_context("")
    return found


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration
    if report.outcome != "passed":
        _not_passed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    _coverage.stop()
    data = _coverage.get_data()
    lines: dict[str, dict[str, list[int]]] = {}
    for file in data.measured_files():
        module = str(pathlib.Path(file).relative_to(pathlib.Path.cwd()))
        for line, tests in data.contexts_by_lineno(file).items():
            for test in set(tests) - _not_passed - {""}:
                lines.setdefault(test, {}).setdefault(module, []).append(line)
    assert data.measured_files(), "the tests import the package from elsewhere"
    seconds = {test: each for test, each in _seconds.items() if test not in _not_passed}
    file = pathlib.Path(os.environ["JAX_CXL_COVERING"])
    file.write_text(json.dumps({"seconds": seconds, "lines": lines}))
