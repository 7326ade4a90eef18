"""Runs test files under pytest, and follows Bazel's test protocol."""

import os
import sys

import pytest


def main() -> int:
    arguments = ["-c", "pyproject.toml", "-p", "no:cacheprovider", *sys.argv[1:]]
    os.environ.setdefault("MPLCONFIGDIR", os.environ["TEST_TMPDIR"])  # HOME is read-only
    if report := os.environ.get("XML_OUTPUT_FILE"):
        arguments.append(f"--junitxml={report}")
    pattern = os.environ.get("TESTBRIDGE_TEST_ONLY")  # --test_filter
    if pattern:
        arguments += ["-k", pattern]
    code = pytest.main(arguments)
    # With --test_filter, it is no error if none of this program's tests match. Without a filter, a
    # program that has no tests is an error.
    return 0 if pattern and code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == "__main__":
    sys.exit(main())
