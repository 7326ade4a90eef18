"""A plugin of pytest that takes over collectives, and records the outcome of each test.

The plugin writes to the file of `--record`. A test that is already in this file does not run again.
So if a test ends the process, a new run continues with the next test.
"""

import json
import pathlib
from typing import Any, TextIO

import pytest

_STARTED = "started"
ENDED = "ended the process"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", help="file for outcomes, a line of JSON each")
    parser.addoption("--take-over", action="store_true", help="take all collectives over")


def pytest_configure(config: pytest.Config) -> None:
    path = pathlib.Path(config.getoption("--record"))
    config.pluginmanager.register(_Recorder(path, config.getoption("--take-over")))


def read(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns the last record in the file about each test, by the name of the test."""
    lines = path.read_text().splitlines() if path.exists() else []
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        record = json.loads(line)
        found[record["test"]] = record
    return {
        name: record | {"outcome": ENDED} if record["outcome"] == _STARTED else record
        for name, record in found.items()
    }


class _Recorder:
    """Writes a line when a test starts and a line when it has ended."""

    def __init__(self, path: pathlib.Path, take_over: bool) -> None:
        self._done = read(path)
        self._file: TextIO = path.open("a")
        self._before: Any = None
        if take_over:
            import jax_cxl

            jax_cxl.replace_collectives(local=True).start()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if _name(item.nodeid) not in self._done]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._before = _stats()
        self._write({"test": _name(nodeid), "outcome": _STARTED})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test has three reports: set-up, call and tear-down. Only the report of the call counts,
        # unless another one has failed or skipped the test.
        if report.when != "call" and report.passed:
            return
        now = _stats()
        record = {
            "test": _name(report.nodeid),
            "outcome": report.outcome,
            "taken": now.collectives_taken - self._before.collectives_taken,
            "left": now.collectives_left - self._before.collectives_left,
            "calls": now.calls - self._before.calls,
        }
        self._write(record | ({"error": _error(report)} if report.failed else {}))

    def _write(self, record: dict[str, Any]) -> None:
        print(json.dumps(record), file=self._file, flush=True)


def _stats() -> Any:
    import jax_cxl

    return jax_cxl.stats()


def _name(nodeid: str) -> str:
    """Returns the name of a test without its folder."""
    return nodeid.rpartition("/")[2]


def _error(report: pytest.TestReport) -> str:
    """Returns the first line of the error of a test."""
    lines = [line[2:] for line in str(report.longrepr).splitlines() if line.startswith("E ")]
    return next((line.strip() for line in lines if line.strip()), "")[:300]
