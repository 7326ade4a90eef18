"""`jax_cxl.make_mesh`: devices of two kernels, and cases in which `jax.make_mesh` works too."""

import sys
import tempfile

import jax
import job
import two_kernels
from absl.testing import absltest, parameterized

import jax_cxl

_AUTO, _EXPLICIT = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit


class OneHostTest(parameterized.TestCase):
    @parameterized.parameters(
        ((8,), ("i",), None),
        ((2, 4), ("i", "j"), None),
        ((2, 2), ("i", "j"), (_AUTO, _EXPLICIT)),
        ((3,), ("i",), (_AUTO,)),
    )
    def test_is_that_of_jax(self, shape, names, types):
        self.assertEqual(jax_cxl.make_mesh(shape, names, types), jax.make_mesh(shape, names, types))
        self.assertEqual(
            jax_cxl.make_mesh((2,), ("i",), devices=jax.devices()[3:6]),
            jax.make_mesh((2,), ("i",), devices=jax.devices()[3:6]),
        )

    def test_too_few_devices(self):
        with self.assertRaises(ValueError):
            jax_cxl.make_mesh((9,), ("i",))


@absltest.skipIf(two_kernels.missing(), two_kernels.missing())
class TwoHostsTest(absltest.TestCase):
    def test_mesh_of_both(self):
        hosts = two_kernels.Hosts()
        self.addCleanup(hosts.close)
        folder = self.enter_context(tempfile.TemporaryDirectory())
        port = two_kernels.free_port()
        program = str(job.PROGRAMS / "two_hosts" / "meshes.py")
        running = [
            hosts.start(
                *(host, sys.executable, program, str(port), str(host)),
                f"file:{folder}/pool?size=64MiB&coherence=flush",
            )
            for host in range(2)
        ]
        for process in running:
            stdout, stderr = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, stderr)
            self.assertIn("jax.make_mesh: `jax.make_mesh` does not support multi-slice", stdout)
            self.assertIn("[0, 1] (Explicit, Explicit)", stdout)
            self.assertIn("sum [ 4.  6.  8. 10.]", stdout)


if __name__ == "__main__":
    absltest.main()
