"""Errors of compiled programs have jax_cxl's classes."""

import copy
import json
import pickle
import re
import traceback

import jax
import jax.numpy as jnp
import job
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import errors
from jax_cxl._job.ending import program_errors

_JAX = jax.errors.JaxRuntimeError


def error_of(text: str) -> BaseException:
    """Raises XLA's exception with this text; returns what arrives in an `except` clause."""
    try:
        raise _JAX(text)
    except RuntimeError as error:
        return error


def caught_by(job_output: str) -> list[dict]:
    """Returns what tests/programs/failures/failing.py printed."""
    return json.loads(re.search(r"caught (\[.*\])", job_output).group(1))


class ClassTest(parameterized.TestCase):
    """Tests the classes of errors. A made-up source of failures takes the runtime's place."""

    def setUp(self):
        super().setUp()
        jax_cxl.initialize()  # Installs the translation of XLA's errors.
        known = list(program_errors._sources)
        self.addCleanup(setattr, program_errors, "_sources", known)
        details = [
            ("rank", "3"),
            ("pid", "42"),
            ("host", "a"),
            ("waited_s", "1.5"),
            ("new", "?"),
            ("told_by", "x"),
        ]
        details += [("rank_0", "0"), ("call_0", "psum"), ("rank_1", "2"), ("call_1", "pmax")]

        def find(text):
            code, _, message = text.partition("|")
            return (code, message, details) if message else None

        program_errors.add_source(find)

    @parameterized.parameters(*errors.BY_CODE_IN_PROGRAM.items(), ("INTERNAL", errors.CxlError))
    def test_every_code(self, code, kind):
        error = error_of(f"{code}|what happened")
        self.assertIsInstance(error, kind)
        self.assertIsInstance(error, _JAX)
        self.assertEqual(type(error).__name__, kind.__name__)
        words = errors.message_of(code, "what happened")
        self.assertEqual(str(error), words)
        self.assertEqual(error.args, (words,))
        line = "".join(traceback.format_exception_only(error))
        self.assertEqual(line, f"jax_cxl.errors.{kind.__name__}: {words}\n")

    def test_what_jax_gives_stays(self):
        error = _JAX("PEER_LOST|x", 14)
        self.assertEqual((error.error_code, error.error_message), (14, "PEER_LOST|x"))
        self.assertEqual(str(_JAX(msg="MISMATCH|x", code=14)), "x")

    def test_attributes(self):
        lost = error_of("PEER_LOST|x")
        self.assertEqual((lost.rank, lost.pid, lost.host, lost.last), (3, 42, "a", None))
        self.assertIsNone(lost.told_by)
        late = error_of("DEADLINE_EXCEEDED|x")
        self.assertEqual((late.rank, late.waited_s), (3, 1.5))
        different = error_of("MISMATCH|x")
        self.assertEqual((different.ranks, different.calls), ((0, 2), ("psum", "pmax")))

    @parameterized.parameters(copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e)))
    def test_copies(self, make_copy):
        for code in ("PEER_LOST", "DEADLINE_EXCEEDED"):
            error = make_copy(error_of(f"{code}|x"))
            self.assertIsInstance(error, errors.BY_CODE[code])
            self.assertIsInstance(error, _JAX)
            self.assertEqual((str(error), error.rank), (errors.message_of(code, "x"), 3))

    def test_errors_of_others_stay_as_they_are(self):
        for text in ("RESOURCE_EXHAUSTED: out of memory", "jax_cxl: PEER_LOST: never happened"):
            error = error_of(text)
            self.assertIs(type(error), _JAX)
            self.assertEqual(str(error), text)
        self.assertEqual(str(_JAX()), "")
        self.assertEqual((_JAX("a", 2).args, _JAX("a", 2).error_code), (("a",), 2))

        class Derived(_JAX):
            pass

        self.assertIs(type(Derived("PEER_LOST|x")), Derived)

    def test_real_error_of_another(self):
        def fail(_):
            raise ValueError("on purpose")

        shape = jax.ShapeDtypeStruct((), jnp.float32)
        with self.assertRaisesRegex(_JAX, "on purpose") as raised:
            jax.jit(lambda v: jax.pure_callback(fail, shape, v))(1.0).block_until_ready()
        self.assertIs(type(raised.exception), _JAX)


class ProgramTest(parameterized.TestCase):
    def test_program_without_a_runtime(self):
        x = harness.values(2)
        program = harness.program(lambda v: jax_cxl.psum(v, "i"), check_vma=True)
        program(x)
        jax_cxl.shutdown()
        for surface in (jax.block_until_ready, np.asarray, jax.device_get):
            with self.assertRaisesRegex(jax_cxl.NotInitializedError, "call jax_cxl.initialize"):
                surface(program(x))

    @parameterized.parameters(
        "block_until_ready",
        "jax.block_until_ready",
        "np.asarray",
        "device_get",
        "float",
        "another_program",
    )
    def test_lost_peer(self, surface):
        done = job.run("failures/failing.py", f"--surface={surface}", processes=2)
        self.assertIn("caught", done.stdout, done.stderr)
        caught = caught_by(done.stdout)
        self.assertLen(caught, 2)
        for error in caught:
            self.assertEqual(error["kind"], "PeerLostError")
            self.assertTrue(error["lost"] and error["jax"])
            self.assertEqual(error["rank"], 1)
            self.assertIn(f"rank 1 (pid {error['pid']} on host {error['host']})", error["text"])
            self.assertRegex(error["call"], "psum: all_reduce sum of 1 float32 at .*failing.py")
            self.assertLess(error["seconds"], job.SOON)
            if not job.incoherent():  # There its calls since its last heartbeat are lost.
                self.assertRegex(error["last"], r"finished psum: .* its collective number 1")

    def test_late_peer(self):
        environment = {"JAX_CXL_TIMEOUT": "0.5"}
        done = job.run("failures/failing.py", "--stuck", processes=2, environment=environment)
        self.assertIn("caught", done.stdout, done.stderr)
        for error in caught_by(done.stdout):
            self.assertEqual(error["kind"], "CollectiveTimeoutError")
            self.assertTrue(error["timeout"] and error["jax"])
            self.assertEqual(error["rank"], 1)
            self.assertIn("JAX_CXL_TIMEOUT", error["text"])


if __name__ == "__main__":
    absltest.main()
