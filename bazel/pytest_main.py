"""Runs test files under pytest, and follows Bazel's test protocol."""

import os
import sys

import pytest


class _LeftOut:
    """Notes whether pytest has left tests out: `-k`, and `-m` in pyproject.toml."""

    tests = False

    def pytest_deselected(self, items):
        self.tests = True


def main() -> int:
    arguments = ["-c", "pyproject.toml", "-p", "no:cacheprovider", *sys.argv[1:]]
    os.environ.setdefault("MPLCONFIGDIR", os.environ["TEST_TMPDIR"])  # HOME is read-only
    if report := os.environ.get("XML_OUTPUT_FILE"):
        arguments.append(f"--junitxml={report}")
    pattern = os.environ.get("TESTBRIDGE_TEST_ONLY")  # --test_filter
    if pattern:
        arguments += ["-k", pattern]
    left_out = _LeftOut()
    code = pytest.main(arguments, [left_out])
    # A program may have only tests that are left out, but a program without tests is an error.
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and left_out.tests:
        return 0
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
