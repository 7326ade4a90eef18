"""Snapshots have the values that arrays on GPUs had, even if programs then overwrite the arrays."""

import contextlib
import pathlib
import sys
import unittest

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import jax_cxl

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "helpers"))
import shared_folder

_DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "bool", "int8", "int4", "complex64", "uint16")


def _gpus() -> list[jax.Device]:
    try:
        return jax.devices("cuda")
    except RuntimeError:
        return []


@unittest.skipUnless(
    _gpus(),
    "JAX sees no GPU here. Under pytest it never does, because conftest.py chooses CPUs: run this"
    " file by itself",
)
class SnapshotsOnGpuTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self._folder = pathlib.Path(self.enterContext(shared_folder.folder()))

    def where(self, paths: int = 1, options: str = "") -> str:
        files = ",".join(str(self._folder / str(i)) for i in range(paths))
        return f"file:{files}?size=256MiB{options}"

    def tree(self, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        large = {"large": rng.normal(size=(3000, 1111)).astype(np.float32), "0-d": np.float32(seed)}
        small = {name: jnp.asarray(rng.integers(0, 2, (seed, 77))).astype(name) for name in _DTYPES}
        return large | small

    @parameterized.parameters(
        (paths, parity, options)
        for paths, parity in ((1, 0), (3, 0), (3, 1))  # parity needs several paths
        for options in ("", "&coherence=flush", "&coherence=uncached")
    )
    def test_what_was_saved_is_restored(self, paths, parity, options):
        with jax_cxl.Snapshots(self.where(paths, options), parity=parity) as snapshots:
            state = None
            for step in (1, 2, 3):
                state = jax.device_put(self.tree(step), _gpus()[0])
                snapshots.save(step, state)
            snapshots.wait()
            self.assertEqual(snapshots.latest(), 3)
            for step in (3, 2):
                state = jax.device_put(self.tree(step), _gpus()[0])
                restored = snapshots.restore(step, state)
                for name, array in self.tree(step).items():
                    np.testing.assert_array_equal(np.asarray(restored[name]), np.asarray(array))

    def test_without_a_copy_donation_is_refused(self):
        add = jax.jit(lambda x: x + 1, donate_argnums=0)
        with jax_cxl.Snapshots(self.where()) as snapshots:
            x = jax.device_put(np.arange(1 << 24, dtype=np.float32), _gpus()[0])
            snapshots.save(1, {"x": x}, copy=False)
            # XLA refuses the donation while x is being copied to the pool. If the copy has already
            # ended, the call succeeds.
            with contextlib.suppress(ValueError, jax.errors.JaxRuntimeError):
                add(x).block_until_ready()
            snapshots.wait()
            restored = snapshots.restore(1, {"x": np.zeros(1 << 24, np.float32)})["x"]
            np.testing.assert_array_equal(restored, np.arange(1 << 24, dtype=np.float32))

    @parameterized.parameters("float32", "bfloat16", "float8_e4m3fn", "int4")
    def test_donated_arrays_are_saved_as_they_were(self, dtype):
        add = jax.jit(lambda x: (x + jnp.ones((), x.dtype)).astype(x.dtype), donate_argnums=0)
        with jax_cxl.Snapshots(self.where()) as snapshots:
            x = jax.device_put(jnp.zeros((4096, 4096), dtype), _gpus()[0])
            for step in range(1, 8):
                x = add(x)
                before = np.asarray(x[:2, :2]).copy()
                snapshots.save(step, {"x": x})
                for _ in range(5):
                    x = add(x)
                restored = None
                snapshots.wait()
                like = jax.ShapeDtypeStruct(
                    (4096, 4096), dtype, sharding=jax.sharding.SingleDeviceSharding(_gpus()[0])
                )
                restored = np.asarray(snapshots.restore(step, {"x": like})["x"])
                np.testing.assert_array_equal(restored, np.full_like(restored, before[0, 0]))


if __name__ == "__main__":
    if not _gpus():
        sys.exit("JAX sees no GPU here")
    absltest.main()
