"""Groups of ranks: their memory, and which ranks wait for each other."""

import job
import pytest
from absl.testing import absltest, parameterized


def _small_pool(ranks: int) -> dict[str, str]:
    """Returns the environment of a job whose pool holds five groups of all ranks at a time."""
    return {"JAX_CXL_POOL": f"shm:?size={3 * ranks}MiB", "JAX_CXL_TIMEOUT": "60"}


class ManyMeshesTest(parameterized.TestCase):
    @parameterized.parameters("jax", "jax_cxl")
    @pytest.mark.sample(2)
    def test_more_meshes_than_the_pool_holds(self, library):
        meshes = int(6 * job.SECONDS)
        done = job.run(
            "many_meshes.py",
            *(f"--meshes={meshes}", f"--library={library}"),
            processes=2,
            devices_per_process=4,
            environment=_small_pool(8),
            timeout=max(280, 4 * meshes),
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count(f"{meshes} meshes right"), 2, done.stdout)

    def test_a_rank_dies_while_groups_come_and_go(self):
        done = job.run(
            "many_meshes.py",
            *("--meshes=10", "--victim=2", "--seed=1"),
            processes=4,
            environment=_small_pool(4),
            launcher=("--grace=8",),
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("lost: ", done.stdout, done.stdout + done.stderr)
        self.assertIn("rank 2 ", done.stdout)
        self.assertNotIn("meshes right", done.stdout)


class PermutedRowsTest(parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_rows_do_not_wait_for_each_other(self, takeover):
        done = job.run(
            "permuted_rows.py",
            *(["--takeover"] if takeover else []),
            processes=4,
            environment={"JAX_CXL_TIMEOUT": "30"},
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("permutations right"), 4)


if __name__ == "__main__":
    absltest.main()
