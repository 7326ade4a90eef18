"""Functions between processes: jax_cxl.barrier with a name, process_gather, and jax_cxl.run."""

import os
import re
import sys
from unittest import mock

import jax
import job
import numpy as np
import pytest
from absl.testing import absltest, parameterized

import jax_cxl


def _run(what):
    return job.run("host/between_processes.py", what)


class BetweenProcessesTest(parameterized.TestCase):
    @parameterized.parameters("gather", "barrier")
    @pytest.mark.sample(2)
    def test_of_two_processes(self, what):
        ended = _run(what)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stdout.count("done"), 2)

    def test_a_late_rank_is_named(self):
        said = _run("late").stdout
        self.assertRegex(said, r"rank 1, barrier 'second': barrier 'second': rank 1 \(pid \d+ on ")
        self.assertIn("; last at barrier 'first') did not arrive within 0.5 s", said)

    def test_a_lost_rank_is_named(self):
        self.assertRegex(
            _run("lost").stdout, r"lost 1: barrier 'alone': rank 1 \(pid \d+ on host .*\) is gone"
        )

    def test_barriers_of_other_names_are_an_error_of_both(self):
        said = _run("other").stdout
        self.assertIn("(0, 1) (\"barrier 'of 0'\", \"barrier 'of 1'\")", said)
        self.assertIn("(1, 0) (\"barrier 'of 1'\", \"barrier 'of 0'\")", said)

    def test_other_structures_are_an_error_of_both(self):
        said = _run("trees").stdout
        self.assertIn("(0, 1) process_gather: the structure is PyTreeDef([*]) here", said)
        self.assertIn("(1, 0) process_gather: the structure is PyTreeDef([*, *]) here", said)


class ArgumentsTest(parameterized.TestCase):
    """Checks arguments, in one process."""

    def test_one_process(self):
        self.assertIsNone(jax_cxl.barrier(name="alone", timeout=1))
        (found,) = jax_cxl.process_gather({"x": np.arange(3), "y": 1.5})
        np.testing.assert_array_equal(found["x"], np.arange(3))
        self.assertEqual(found["y"], 1.5)

    @parameterized.parameters("text", None, (np.array(["a"]),), (np.array([{}]),), (object(),))
    def test_what_holds_no_numbers(self, leaf):
        if leaf is None:
            self.assertEqual(jax_cxl.process_gather(None), [None])
            return
        with self.assertRaisesRegex(TypeError, "has no numbers"):
            jax_cxl.process_gather(leaf)

    def test_there_is_no_such_root(self):
        with self.assertRaisesRegex(ValueError, "there is no process 3"):
            jax_cxl.process_gather(1, root=3)

    def test_a_barrier_is_of_a_program_or_of_processes(self):
        with self.assertRaisesRegex(TypeError, "x needs an axis_name"):
            jax_cxl.barrier(jax.numpy.ones(3))
        with self.assertRaisesRegex(TypeError, "only without axis_name"):
            jax_cxl.barrier(jax.numpy.ones(3), "i", name="x")


def _total(scale):
    import jax
    import jax.numpy as jnp

    jax.distributed.initialize()
    mesh = jax.sharding.Mesh(jax.devices(), ("i",))
    x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("i")))
    print("computing")
    taken = __import__("jax_cxl").stats().collectives_taken
    total = jax.jit(jnp.sum)(x) * scale
    return {"total": total, "taken": __import__("jax_cxl").stats().collectives_taken - taken}


def _fails():
    raise RuntimeError("the reason")


class RunTest(absltest.TestCase):
    """jax_cxl.run."""

    def test_returns_the_results_of_all_ranks(self):
        found = jax_cxl.run(_total, 2, ranks=2, replace_collectives=True)
        self.assertLen(found, 2)
        for each in found:
            np.testing.assert_array_equal(each["total"], 56.0)
            self.assertIsInstance(each["total"], np.ndarray)
            self.assertEqual(each["taken"], 1)

    def test_functions_of_the_program(self):
        number = 3
        self.assertEqual(jax_cxl.run(lambda: number, ranks=2), [3, 3])
        with (
            mock.patch.dict(sys.modules, cloudpickle=None),
            self.assertRaisesRegex(TypeError, r"pip install 'jax_cxl\[notebook\]'"),
        ):
            jax_cxl.run(lambda: number)

    def test_a_failure_has_the_output(self):
        with self.assertRaisesRegex(jax_cxl.CxlError, "(?s)status 1.*RuntimeError: the reason"):
            jax_cxl.run(_fails, ranks=2)

    def test_arguments(self):
        with self.assertRaises(ValueError):
            jax_cxl.run(_fails, ranks=0)
        with self.assertRaisesRegex(TypeError, "cannot be pickled"):
            jax_cxl.run(_total, open(os.devnull))  # noqa: SIM115


class ReplaceAlikeTest(absltest.TestCase):
    """One process replaces collectives, and the other does not."""

    def test_is_a_mismatch_at_once(self):
        ended = job.run("host/replace_in_one.py")
        said = re.findall(r"after (\d+) s: (.*)", ended.stdout)
        self.assertLen(said, 2, ended.stderr)
        for seconds, message in said:
            # If jax_cxl did not notice the mismatch, Gloo would give up only after 30 s.
            self.assertLess(int(seconds), 10)
            self.assertRegex(message, "_COLLECTIVES is set in process 0 and not in process 1")


if __name__ == "__main__":
    absltest.main()
