"""`python -m jax_cxl bench` and benchmarks/check_regression.py, as their users start them."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import job
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from jax_cxl import _sizes
from jax_cxl._commands.measuring import ops, report

_BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
_CHECK = _BENCHMARKS / "check_regression.py"


def _run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=job.quick_environment() | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def _bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return _run("-m", "jax_cxl", "bench", *arguments, **environment)


class BenchTest(parameterized.TestCase):
    def test_measures_both_backends(self):
        self.check_both_backends("psum", "ppermute")

    @pytest.mark.long
    def test_measures_both_backends_in_other_operations(self):
        self.check_both_backends("all_gather", "psum_scatter", "all_to_all")

    def check_both_backends(self, *names):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "r.json"
            run = _bench(
                *("--ops", ",".join(names)),
                *("--sizes", "1KiB:4KiB:x4", "--baseline", "gloo", "--repeats", "2"),
                *("--json", str(results)),
            )
            self.assertEqual(run.returncode, 0, run.stderr)
            found = json.loads(results.read_text())
        self.assertEqual(list(found), ["machine", "command", "versions", "emulated", "results"])
        self.assertIs(found["emulated"], True)
        self.assertIn("jax_cxl bench --ops", found["command"])
        self.assertContainsSubset({"cpu", "cores", "load_before"}, found["machine"])
        self.assertContainsSubset({"jax", "jaxlib", "numpy", "python"}, found["versions"])
        cases = 2 * len(names)
        self.assertLen(found["results"], 2 * cases)
        self.assertEqual({row["backend"] for row in found["results"]}, {"jax_cxl", "gloo"})
        for row in found["results"]:
            self.check_row(row)
        lines = run.stdout.splitlines()
        table = [line for line in lines if line.split()[:1] and line.split()[0].isdecimal()]
        self.assertLen(table, 2 * cases)
        self.assertIn(f"bench: {cases}/{cases} {names[-1]} 4KiB", run.stderr)

    def check_row(self, row):
        self.assertEqual(
            list(row),
            [
                *("backend", "op", "bytes", "dtype", "ranks", "time_us"),
                *("algbw_gbps", "busbw_gbps", "wrong"),
                *(["bytes_written"] if row["backend"] == "jax_cxl" else []),
            ],
        )
        self.assertEqual(row["wrong"], 0)
        self.assertEqual((row["dtype"], row["ranks"]), ("float32", 2))
        time = row["time_us"]
        self.assertEqual(list(time), ["min", "median", "max"])
        self.assertBetween(time["median"], time["min"], time["max"])
        self.assertGreater(time["min"], 0)
        # Times are rounded to a nanosecond. If a time is about a microsecond, its rounding changes
        # the rate noticeably.
        rate = row["bytes"] / time["median"] / 1e3
        self.assertAlmostEqual(row["algbw_gbps"], rate, delta=2e-3 * rate + 1e-6)
        factor = float(ops.OPS[row["op"]].bus_factor(2))
        self.assertAlmostEqual(row["busbw_gbps"], rate * factor, delta=2e-3 * rate + 1e-6)

    @pytest.mark.long
    def test_operations_that_gloo_lacks(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "r.json"
            run = _bench(
                *("--ranks", "3", "--ops", "pscan,barrier", "--sizes", "96KiB", "--repeats", "1"),
                *("--calls", "1", "--baseline", "gloo", "--json", str(results)),
            )
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            scan, barrier = json.loads(results.read_text())["results"]
        self.assertEqual((scan["wrong"], barrier["wrong"]), (0, 0))
        self.assertEqual((barrier["bytes"], barrier["bytes_written"]), (0, 0))

    @pytest.mark.long
    def test_rooted_operations_of_three_ranks_and_a_short_dtype(self):
        run = _bench(
            *("--ranks", "3", "--ops", "broadcast,reduce,gather,scatter", "--dtype", "bfloat16"),
            *("--sizes", "100", "--repeats", "1", "--calls", "2"),
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = [line.split() for line in run.stdout.splitlines() if "bfloat16" in line]
        self.assertEqual([row[4] for row in rows], ["broadcast", "reduce", "gather", "scatter"])
        # The 100 bytes are cut to whole blocks of bfloat16: one block of 50 elements for broadcast
        # and reduce, three blocks of 16 elements for gather and scatter.
        self.assertEqual(
            [(row[0], row[1]) for row in rows], [("100", "50")] * 2 + [("96", "16")] * 2
        )
        self.assertEqual({row[11] for row in rows}, {"0"})

    @parameterized.parameters(
        (("--baseline", "gloo,nccl"), "needs --platform cuda"),
        (("--baseline", "nccl"), "needs --platform cuda"),
        (("--baseline", "smoke"), "'smoke' is not one of gloo, nccl"),
        (("--ops", "psum,sort"), "'sort' is not one of"),
        (("--sizes", "4KB"), "not a size such as"),
        (("--ranks", "1"), "--ranks must be from 2"),
        (("--json", "/no/such/folder/r.json"), "there is no folder /no/such/folder"),
    )
    def test_says_what_is_wrong(self, arguments, message):
        run = _bench(*arguments)
        self.assertEqual(run.returncode, 2)
        self.assertIn(message, run.stderr)


class ProgramsTest(parameterized.TestCase):
    """The programs in benchmarks/ that a job runs."""

    def run_program(self, name, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "r.json"
            run = _run(
                *("-m", "jax_cxl.launch", "-n", "2", "--devices-per-process", "1"),
                *(str(_BENCHMARKS / name), "--json", str(results), "--repeats", "1", *arguments),
            )
            self.assertEqual(run.returncode, 0, run.stderr)
            found = json.loads(results.read_text())
        self.assertEqual(list(found), ["machine", "command", "versions", "emulated", "results"])
        return found["results"]

    @pytest.mark.long
    @unittest.skipUnless(
        shutil.which(os.environ.get("CXX", "c++")),
        "needs a C++ compiler: $CXX, or else c++, is not on PATH",
    )
    def test_call_overhead(self):
        rows = self.run_program("collectives/call_overhead.py", "--sizes", "1KiB")
        self.assertEqual([row["backend"] for row in rows], 4 * ["jax_cxl", "empty"])

    @pytest.mark.long
    def test_overlap(self):
        rows = self.run_program("collectives/overlap.py", "--everywhere")
        self.assertEqual([row["op"] for row in rows], ["psum", "ppermute"])
        for row in rows:
            self.assertGreater(row["both_ms"]["median"], 0)


class StatusTest(absltest.TestCase):
    def test_a_wrong_baseline_is_no_failure(self):
        results = [{"backend": "jax_cxl", "wrong": 0}, {"backend": "gloo", "wrong": 3}]
        told = []
        self.assertEqual(report.status(results, told.append), 0)
        self.assertIn("gloo gave wrong results", told[0])
        results[0]["wrong"] = 1
        self.assertEqual(report.status(results, told.append), 1)


class SizesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("512", [512]),
        ("8,1KiB", [8, 1024]),
        ("4KiB:64KiB:x4", [4096, 16384, 65536]),
        ("1MiB:3MiB", [1 << 20, 2 << 20]),
    )
    def test_parses(self, text, expected):
        self.assertEqual(_sizes.parse_list(text), expected)

    @parameterized.parameters("", "0", "4kb", "1:2:3", "8:4", "1:8:x1", "1:2:x2:x2")
    def test_refuses(self, text):
        with self.assertRaises(ValueError):
            _sizes.parse_list(text)

    @parameterized.parameters(("1GB", "1GiB"), ("16mb", "16MiB"), ("2K", "2KiB"), ("3tib", "3TiB"))
    def test_says_how_to_write_a_unit(self, text, meant):
        with self.assertRaisesRegex(ValueError, f"write {meant}$"):
            _sizes.parse(text)

    def test_formats(self):
        self.assertEqual([_sizes.format_size(s) for s in (7, 4096, 3 << 20)], ["7", "4KiB", "3MiB"])


class SumsTest(absltest.TestCase):
    def test_sums_of_the_most_ranks_are_exact_in_every_dtype(self):
        largest = max(int(ops.values(0, 0, 1000).max()) * ops.MAX_RANKS, ops.UNWRITTEN)
        self.assertLessEqual(largest, np.iinfo(np.int8).max)


class CheckRegressionTest(parameterized.TestCase):
    def check(self, medians, *options, wrong=0):
        """Compares a file of two results, 10 us and 20 us, with a file of these `medians`."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [str(pathlib.Path(folder) / name) for name in ("old.json", "new.json")]
            for path, times, bad in ((paths[0], (10, 20), 0), (paths[1], medians, wrong)):
                results = [
                    {
                        "backend": "jax_cxl",
                        "op": "psum",
                        "bytes": 4096 * i,
                        "dtype": "float32",
                        "ranks": 2,
                        "time_us": {"min": 1, "median": time, "max": 100},
                        "wrong": bad,
                    }
                    for i, time in enumerate(times)
                ]
                pathlib.Path(path).write_text(json.dumps({"results": results}))
            return _run(str(_CHECK), *paths, *options)

    @parameterized.parameters(
        ((12, 20), (), 0),
        ((1, 1), (), 0),
        ((13, 20), (), 1),
        ((13, 20), ("--tolerance", "0.5"), 0),
        ((), (), 2),
    )
    def test_fails_on_the_slower_side_only(self, medians, options, status):
        run = self.check(medians, *options)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        self.assertEqual("SLOWER" in run.stdout, status == 1)

    def test_fails_on_wrong_results(self):
        run = self.check((10, 20), wrong=3)
        self.assertEqual(run.returncode, 1)
        self.assertIn("WRONG", run.stdout)

    def test_refuses_other_files(self):
        run = _run(str(_CHECK), __file__, __file__)
        self.assertEqual(run.returncode, 2)
        self.assertIn("not a results file", run.stderr)


if __name__ == "__main__":
    absltest.main()
