"""`python -m jax_cxl clean` and `doctor`."""

import os
import subprocess
import sys

import jax
from absl.testing import absltest

import jax_cxl
from jax_cxl._commands.status import doctor


class CleanTest(absltest.TestCase):
    def test_removes_leftovers_and_says_so(self):
        leftover = f"/dev/shm/jax_cxl.clean-test.{os.getpid()}"
        os.close(os.open(leftover, os.O_CREAT | os.O_EXCL, 0o600))
        cleaned = subprocess.run(
            [sys.executable, "-m", "jax_cxl", "clean"], capture_output=True, text=True
        )
        self.assertEqual(cleaned.returncode, 0, cleaned.stderr)
        self.assertFalse(os.path.exists(leftover))


class DoctorTest(absltest.TestCase):
    def test_finds_no_problem_here(self):
        checked = subprocess.run(
            [sys.executable, "-m", "jax_cxl", "doctor"], capture_output=True, text=True
        )
        self.assertNotIn("problem", checked.stdout)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        for word in ("jaxlib", "/dev/shm", "memlock", "cache flushes", "dax", "GPU", "processes"):
            self.assertIn(word, checked.stdout)

    def test_ends_with_the_text_of_a_bug_report(self):
        environment = os.environ | {"JAX_CXL_TIMEOUT": "17", "JAX_CXL_TIMOUT": "18", "TOKEN": "19"}
        checked = subprocess.run(
            [sys.executable, "-m", "jax_cxl", "doctor"],
            env=environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(checked.returncode, 1, checked.stderr)
        first, report = checked.stdout.split("For a bug report")
        self.assertIn("JAX_CXL_TIMOUT: did you mean JAX_CXL_TIMEOUT?", first)
        for text in (
            *(f"jax_cxl {jax_cxl.__version__}", f"jax {jax.__version__}", "processors"),
            *("setting: JAX_CXL_TIMEOUT=17", "/dev/shm: ", "problem: ", "GPU: "),
        ):
            self.assertIn(text, report)
        self.assertNotIn("TOKEN", report)

    def test_a_pool_that_does_not_fit_is_a_problem(self):
        (finding,) = doctor.check_pool(10**9)
        self.assertEqual(finding.level, "problem")
        self.assertIn("python -m jax_cxl clean", finding.text)


if __name__ == "__main__":
    absltest.main()
