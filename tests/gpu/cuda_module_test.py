"""The CUDA module, on machines without GPUs."""

import importlib.util
import subprocess
import sys

from absl.testing import absltest

import jax_cxl  # noqa: F401  An installed package may have the module.

# If two modules define classes of the same name, nanobind only warns, and the module that is
# imported second lacks its class.
_PROGRAM = """
import jax_cxl._core, jax_cxl._cuda
from jax_cxl._job import platforms
platforms.CUDA.load()
print(hasattr(jax_cxl._cuda, "TableColumn"), hasattr(jax_cxl._cuda, "DeviceCopies"))
"""


class CudaModuleTest(absltest.TestCase):
    def test_its_classes_stand_beside_those_of_the_core(self):
        if importlib.util.find_spec("jax_cxl._cuda") is None:
            self.skipTest("no CUDA module: pip builds it where nvcc is, Bazel does not")
        command = [sys.executable, "-W", "error::RuntimeWarning", "-c", _PROGRAM]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout.split(), done.stderr), (["True", "True"], ""))


if __name__ == "__main__":
    absltest.main()
