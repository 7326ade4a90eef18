"""Messages say what is wrong, where, and what to do next."""

import os
import subprocess
import sys
from unittest import mock

import numpy as np
import shared_folder
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import errors
from jax_cxl._commands.status import doctor

# Makes a store where each file system has room, but no inode.
_NO_INODES = """
mount -t tmpfs -o size=64m,nr_inodes=1 none {folder} || exit 77
exec {python} -c '
import jax_cxl, numpy
store = jax_cxl.Store("file:{folder}/a?size=8MiB")
try:
    store.publish("x", {{"x": numpy.zeros(3)}})
except jax_cxl.PoolError as error:
    print(error)
'
"""


class MessagesTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"JAX_CXL_LAUNCH_SIZE": "2"}, "now ends all ranks. With its option --go-on"),
        (
            {"JAX_CXL_LAUNCH_SIZE": "2", "JAX_CXL_LAUNCH_GO_ON": "1"},
            r"jax_cxl.regroup\(\) continues without it",
        ),
        ({}, "Start all processes again"),
    )
    def test_a_lost_rank_and_the_launcher(self, environment, says):
        with mock.patch.dict(os.environ, environment):
            for name in {"JAX_CXL_LAUNCH_SIZE", "JAX_CXL_LAUNCH_GO_ON"} - set(environment):
                os.environ.pop(name, None)
            error = errors.from_code("PEER_LOST", "rank 1 is gone")
        self.assertIsInstance(error, errors.PeerLostError)
        self.assertRegex(str(error), f"^rank 1 is gone. The output of the lost rank .*{says}")

    def test_doctor_tries_to_make_a_file(self):
        finding = doctor._space("/proc", 1 << 20, "the default pool")
        self.assertEqual(finding.level, "problem")
        self.assertRegex(finding.text, "/proc: this user cannot make a file there .*JAX_CXL_POOL=")
        self.assertEqual(doctor._space("/dev/shm", 0, "a pool").level, "ok")

    def test_full_memory(self):
        for call in (
            lambda: jax_cxl.Store("shm:of_no_test?size=900TiB").publish("a", {"x": 1}),
            lambda: jax_cxl.Snapshots("shm:of_no_test?size=900TiB").save(1, {"x": 1}),
        ):
            with self.assertRaises(errors.PoolTooSmallError) as raised:
                call()
            says = "it needs 900 TiB.* are free; .*jax_cxl clean.*JAX_CXL_POOL='shm:.size="
            self.assertRegex(str(raised.exception), says)
            self.assertNotIn("the pool", str(raised.exception))
        self.assertFalse(os.path.exists("/dev/shm/jax_cxl_store.of_no_test"))

    def test_no_inode(self):
        with shared_folder.folder() as folder:
            script = _NO_INODES.format(folder=folder, python=sys.executable)
            done = subprocess.run(
                ["unshare", "-rm", "sh", "-c", script],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
            )
        if "unshare" in done.stderr or done.returncode == 77:
            self.skipTest(f"mounting a file system needs more rights: {done.stderr}")
        self.assertRegex(done.stdout, "has space, but no inode for another file", done.stderr)

    def test_what_does_not_fit_is_said_once(self):
        like = {"x": np.zeros(4, np.float32)}
        with shared_folder.folder() as folder, self.assertNoLogs("jax_cxl", "WARNING"):
            with jax_cxl.Store(f"file:{folder}/a?size=64MiB") as store:
                for _ in range(3):
                    store.publish("a", {"x": np.zeros(3, np.float32)})
                store.flush("a")
                for wanted, says in (
                    (like, r"was saved with shape \(3,\), and `like` has \(4,\)"),
                    ({"y": like["x"]}, r"the version has no leaf \['y'\]"),
                    ({"x": np.zeros(3, np.int8)}, "was saved as float32, and `like` has int8"),
                ):
                    with self.assertRaisesRegex(jax_cxl.StoreError, says):
                        store.read("a", wanted)
                    with self.assertRaisesRegex(jax_cxl.StoreError, says):
                        store.view("a", wanted)
                with self.assertRaisesRegex(TypeError, "into=list must be .*not its tree"):
                    store.read("a", into=[np.zeros(3, np.float32)])
            with jax_cxl.Snapshots(f"file:{folder}/b?size=64MiB") as snapshots:
                for step in range(3):
                    snapshots.save(step, {"x": np.zeros(3, np.float32)})
                snapshots.wait()
                with self.assertRaisesRegex(jax_cxl.StoreError, r"was saved with shape \(3,\)"):
                    snapshots.restore_latest(like)


if __name__ == "__main__":
    absltest.main()
