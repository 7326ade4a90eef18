"""`python -m jax_cxl tune`, and the tables that it writes."""

import json
import pathlib
import subprocess
import sys
import tempfile
from types import SimpleNamespace
from unittest import mock

import job
import pytest
from absl.testing import absltest, parameterized

from benchmarks.collectives import levels
from jax_cxl import _core
from jax_cxl._commands.bench import tune
from jax_cxl._job import tuning_table
from jax_cxl._lowering.levels import choice


class TuningTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, values):
        path = self.folder / name
        path.write_text(json.dumps({"tuning": values}))
        return str(path)

    def test_table_completes_the_built_in_one(self):
        built_in = tuning_table.table(tuning_table.load(None))
        found = tuning_table.table(tuning_table.load(self.write("t.json", {"num_slots": 5})))
        self.assertEqual(found, built_in | {"num_slots": 5})

    @parameterized.parameters(
        (
            '{"tuning": {"gpu_levels_bytes": 1}}',
            "another version of jax_cxl wrote this tuning table, because this version has no"
            " 'gpu_levels_bytes'; unset JAX_CXL_TUNING and run `python -m jax_cxl tune`",
        ),
        ('{"tuning": {"num_slots": 1}}', "num_slots is 1, but must be a number from 2 to"),
        ('{"tuning": {"num_slots": "4"}}', "not a tuning table"),
        ('{"tuning": {"slot_bytes": -1}}', "slot_bytes is -1, but must be a multiple of"),
        ('{"tuning": {"slot_bytes": 9223372036854775808}}', "not a tuning table"),
        ('{"tuning": [1]}', "not a tuning table"),
        ("{}", "not a tuning table"),
        ("[1]", "not a tuning table"),
        ("slots", "not a tuning table"),
    )
    def test_says_what_is_wrong(self, text, message):
        path = self.folder / "t.json"
        path.write_text(text)
        with self.assertRaisesRegex(ValueError, message):
            tuning_table.load(str(path))

    def test_no_such_file(self):
        with self.assertRaisesRegex(ValueError, "JAX_CXL_TUNING=/no/table.json"):
            tuning_table.load("/no/table.json")

    def test_job_runs_with_a_table(self):
        # With these values, calls that would fit into a submission or a slot take many rounds
        # through the rings.
        values = {"slot_bytes": 4096, "num_slots": 2, "inline_bytes": 128, "past_caches_bytes": 0}
        table = self.write("t.json", values | {"all_read_bytes": 0})
        done = job.run("tuned.py", processes=3, environment={"JAX_CXL_TUNING": table})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("right"), 3)

    def test_different_tables_are_an_error(self):
        other = self.write("other.json", {"slot_bytes": 8192})
        done = job.run("tuned.py", other)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("MismatchError", done.stderr)
        self.assertRegex(
            done.stderr, r"slot_bytes is (8192 here and \d+|\d+ here and 8192) on process"
        )


class TuneTest(parameterized.TestCase):
    def test_writes_the_fastest_table(self):
        questions = [
            tune._Question("slots", [{"num_slots": 4}, {"num_slots": 6}], "psum", "1KiB"),
            tune._Question("copies", [{"past_caches_bytes": 2}], "psum", "1KiB"),
        ]
        # Each candidate runs as one job in each turn. The second candidate, with 6 slots, is twice
        # as fast as the first, but something disturbs its first job.
        seen = []

        def bench(question, values, options):
            del question, options
            seen.append(values)
            median = 10.0 if values["num_slots"] == 4 else 5.0
            if len(seen) == 2:
                median = 100.0
            row = {"op": "psum", "bytes": 1024, "time_us": {"median": median}}
            return {"machine": {"cpu": "any"}, "results": [row]}

        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder) / "t.json"
            with (
                mock.patch.object(tune, "_questions", lambda ranks: questions),
                mock.patch.object(tune, "_bench", bench),
            ):
                self.assertEqual(tune.main([str(table), "--turns", "2"]), 0)
            found = json.loads(table.read_text())
            built_in = tuning_table.table(tuning_table.load(None))
            best = built_in | {"num_slots": 6, "past_caches_bytes": 2}
            self.assertEqual(tuning_table.table(tuning_table.load(str(table))), best)
        self.assertEqual([values["num_slots"] for values in seen], [4, 6, 4, 6, 6, 6])
        self.assertEqual([row["mean_us"] for row in found["measured"]], [10, 5, 5])

    def test_keeps_what_is_as_good(self):
        question = tune._Question("slots", [{"num_slots": 4}, {"num_slots": 6}], "psum", "1KiB")
        self.assertEqual(tune._choose(question, [1.02, 1.0], {"num_slots": 4}), {"num_slots": 4})
        self.assertEqual(tune._choose(question, [1.05, 1.0], {"num_slots": 4}), {"num_slots": 6})

    def test_every_candidate_is_a_table(self):
        for ranks in (2, 4):
            for question in tune._questions(ranks):
                self.assertNotEmpty(question.candidates)
                for candidate in question.candidates:
                    _core.parse_tuning(json.dumps({"tuning": candidate}))

    def test_levels_pay_from_the_size_on_from_which_they_are_always_faster(self):
        slower, equal = (9.0, 5.0), (5.0, 5.0)  # one call than levels
        self.assertEqual(levels.limit({1: slower, 2: equal, 4: slower, 8: slower}), 4)
        self.assertEqual(levels.limit({1: slower, 2: slower}), 1)
        self.assertEqual(levels.limit({1: slower, 2: equal}), tuning_table.NEVER)

    def test_each_collective_in_levels_has_fields(self):
        fields = set(map(choice.field, choice.OPS))
        self.assertEqual(fields, {name for name in _core.TUNING_FIELDS if "levels" in name})

    @pytest.mark.long
    def test_measures_levels(self):
        operations = ("psum", "psum_scatter", "all_gather", "all_to_all", "broadcast")
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "t.json")
            command = [
                *(sys.executable, "-m", "jax_cxl.launch", "--devices-per-process=2"),
                *(levels.__file__, "--ways=flat,levels", "--sizes=4KiB", "--seconds=0.1"),
                *(f"--operations={','.join(operations)}", f"--table={path}"),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(pathlib.Path(path).read_text())
            tuned = tuning_table.table(tuning_table.load(path))
        rows = {row["operation"]: row for row in found["measured"]}
        self.assertEqual(tuple(rows), operations)
        for name, op in zip(operations, choice.OPS, strict=True):
            faster = rows[name]["flat"]["us"] >= 1.03 * rows[name]["levels"]["us"]
            expected = 4096 if faster else tuning_table.NEVER
            self.assertEqual(tuned[choice.field(op)], expected)

    def test_measures_under_the_candidate(self):
        question = tune._Question("slots", [], "psum", "1KiB")
        options = SimpleNamespace(ranks=2)
        found = tune._bench(question, {"slot_bytes": 8192}, options)
        self.assertEqual([row["op"] for row in found["results"]], ["psum"])


if __name__ == "__main__":
    absltest.main()
