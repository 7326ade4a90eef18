"""The collectives between GPUs: parts of the test matrix, and overlap. Skipped without GPUs."""

import importlib.util
import json
import subprocess
import sys
import tempfile

import job
from absl.testing import absltest, parameterized


def gpus() -> int:
    """Returns the number of NVIDIA GPUs, without making a CUDA context in this process."""
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    return found.stdout.count("GPU ") if found.returncode == 0 else 0


RANKS = next((n for n in (4, 2) if n <= gpus()), 0)


@absltest.skipUnless(RANKS, "needs two GPUs")
@absltest.skipUnless(importlib.util.find_spec("jax_cxl._cuda"), "built without CUDA")
class CudaTest(parameterized.TestCase):
    def run_on_gpus(self, program, *arguments, processes=RANKS, **environment):
        done = job.run(
            program,
            *arguments,
            processes=processes,
            devices_per_process=RANKS // processes,
            environment={
                "JAX_PLATFORMS": "cuda",
                "MATRIX_RANKS": str(RANKS),
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                **({"CUDA_MODULE_LOADING": "EAGER"} if processes < RANKS else {}),
                **environment,
            },
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    @parameterized.parameters(
        *({"processes": 1, "operation": name} for name in ("all_gather", "psum", "ragged")),
        *({"processes": RANKS, "operation": name} for name in ("all_", "psum", "p", "r")),
    )
    def test_same_bits_as_numpy(self, processes, operation):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        self.run_on_gpus(
            *("matrix/run_matrix.py", f"--output={folder}", f"--operation={operation}"),
            *("--transformations=value,scan,grad", "--dtypes=float32,bfloat16,int8,complex64"),
            processes=processes,
        )
        check = job.PROGRAMS / "matrix/check_matrix.py"
        command = [sys.executable, str(check), f"--records={folder}"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        self.assertGreater(found["right"], 0)
        self.assertEqual(found["unexpected"], [])

    @parameterized.parameters("coherent", "flush", "flush&gpu_writes=memory", "uncached")
    def test_large_calls(self, coherence):
        pool = f"shm:?size=1GiB&coherence={coherence}"
        self.run_on_gpus("gpu/large_calls.py", "--mib=128", JAX_CXL_POOL=pool)

    def test_start_and_done_run_beside_products(self):
        found = json.loads(self.run_on_gpus("gpu/cuda_overlap.py").split("[0] ")[-1])
        self.assertTrue(found["same"])
        self.assertGreater(found["hidden"], 0.5, found)


if __name__ == "__main__":
    absltest.main()
