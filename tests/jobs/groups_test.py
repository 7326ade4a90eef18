"""Groups of ranks: their memory, and which ranks wait for each other."""

import job
from absl.testing import absltest, parameterized

# Holds five groups of these ranks at a time.
_SMALL_POOL = {"JAX_CXL_POOL": "shm:?size=12MiB", "JAX_CXL_TIMEOUT": "60"}


class ManyMeshesTest(parameterized.TestCase):
    def test_more_meshes_than_the_pool_holds(self):
        meshes = int(6 * job.SECONDS)
        done = job.run("many_meshes.py", f"--meshes={meshes}", processes=4, environment=_SMALL_POOL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count(f"{meshes} meshes right"), 4, done.stdout)

    def test_a_rank_dies_while_groups_come_and_go(self):
        done = job.run(
            "many_meshes.py",
            *("--meshes=24", "--victim=2", "--seed=1"),
            processes=4,
            environment=_SMALL_POOL,
            launcher=("--grace=30",),
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
