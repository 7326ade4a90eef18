"""Every dtype through every way of moving and reducing, against NumPy."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized

from jax_cxl._lowering.contract import DTYPES
from jax_cxl._lowering.primitives import dtypes
from jax_cxl.ops import public as ops

WIDE = ("int64", "uint64", "float64", "complex128")
PACKED = tuple(dtypes.PACKED_DTYPES)
DTYPES = tuple(name for name in (*DTYPES, *PACKED) if name not in WIDE)


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def every_value(name, ranks=harness.RANKS):
    """Returns 256 values for each rank.

    For a dtype of 8 bits or less, these are all its bit patterns, in a different order on each
    rank.
    """
    dtype = dtype_of(name)
    if name == "bool":
        return np.random.default_rng(0).integers(0, 2, (ranks, 256)).astype(bool)
    if name in PACKED or dtype.itemsize == 1:
        bits = 8 * dtype.itemsize if name not in PACKED else int(name[-1] if "int" in name else 4)
        patterns = (np.arange(256) % (1 << bits)).astype(np.uint8)
        if name.startswith("int") and name in PACKED:
            patterns = (patterns.astype(np.int8) << (8 - bits)) >> (8 - bits)
            values = patterns.astype(dtype)
        elif name in PACKED and name.startswith("uint"):
            values = patterns.astype(dtype)
        else:
            values = patterns.view(dtype)
        rng = np.random.default_rng(1)
        return np.stack([rng.permutation(values) for _ in range(ranks)])
    return harness.values(256, dtype=dtype, ranks=ranks)


def finite_sum(x):
    """Returns the sum in rank order. Short floats accumulate in float32, integers wrap around."""
    if jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.name in PACKED:
        total = x.astype(np.int32).sum(0)
        bits = int(x.dtype.name[-1])
        total &= (1 << bits) - 1
        if not x.dtype.name.startswith("u"):
            total -= (total >> (bits - 1)) << bits
        return total.astype(np.int8).astype(x.dtype)
    return harness.fold(x)


class DtypesTest(parameterized.TestCase):
    @parameterized.parameters(*DTYPES)
    @pytest.mark.sample(3)
    def test_movement(self, name):
        x = every_value(name)
        n, size = x.shape
        blocks = x.reshape(n, n, size // n)

        def body(v):
            return (
                ops.all_gather(v, "i"),
                ops.all_to_all(v, "i", 0, 0, tiled=True),
                ops.ppermute(v, "i", [(0, 1), (3, 2)]),
                ops.broadcast(v, "i", root=3),
                ops.gather(v, "i", root=1),
                ops.scatter(v, "i", root=2, tiled=True),
            )

        gathered, swapped, permuted, sent, collected, dealt = harness.run(body, x)
        harness.check_equal(gathered, np.stack([x] * n))
        harness.check_equal(swapped, blocks.swapaxes(0, 1).reshape(x.shape))
        zeros = np.zeros_like(x[0])
        harness.check_equal(permuted, np.stack([zeros, x[0], x[3], zeros]))
        harness.check_equal(sent, np.stack([x[3]] * n))
        # On ranks other than the root, `gather` selects zeros in place of the result. In such a
        # selection XLA makes all NaNs the same NaN, so this compares values and not bits.
        self.assertEqual(collected.dtype, x.dtype)
        as_complex = collected[1].astype(np.complex64)
        np.testing.assert_array_equal(as_complex, x.astype(np.complex64))
        harness.check_equal(dealt, blocks[2])

    @parameterized.parameters(*(name for name in DTYPES if name != "bool"))
    def test_sums(self, name):
        x = every_value(name)
        # A NaN may have any of many bit patterns. This tests only arithmetic, so NaN is left out.
        if jnp.issubdtype(x.dtype, jnp.floating):
            x = np.where(np.isfinite(x.astype(np.float32)), x, np.ones_like(x))
        expected = finite_sum(x)

        def body(v):
            return ops.psum(v, "i"), ops.psum_scatter(v, "i", tiled=True), ops.pscan(v, "i")

        total, scattered, scanned = harness.run(body, x)
        for actual, wanted in (
            (total[0], expected),
            (scattered.reshape(-1), expected),
            (scanned[-1], expected),
            (scanned[1], finite_sum(x[:2])),
        ):
            self.assertEqual(actual.dtype, wanted.dtype)
            np.testing.assert_array_equal(actual.astype(np.complex64), wanted.astype(np.complex64))

    def test_sums_of_bool(self):
        with self.assertRaisesRegex(TypeError, "psum_scatter.*bool. Convert"):
            harness.run(lambda v: ops.psum_scatter(v, "i", tiled=True), every_value("bool"))

    @parameterized.parameters(*(name for name in DTYPES if "complex" not in name))
    def test_extrema(self, name):
        x = every_value(name)
        wide = x.astype(np.float64)
        largest, least = harness.run(lambda v: (ops.pmax(v, "i"), ops.pmin(v, "i")), x)
        for actual, wanted in ((largest, wide.max(0)), (least, wide.min(0))):
            self.assertEqual(actual.dtype, x.dtype)
            np.testing.assert_array_equal(actual[0].astype(np.float64), wanted)

    @parameterized.parameters("int4", "uint4", "float8_e4m3fn", "bfloat16", "int8", "bool")
    def test_means(self, name):
        x = every_value(name)
        y = harness.run(lambda v: ops.pmean(v, "i"), x)
        total = harness.run(lambda v: ops.psum(v, "i"), x)[0]
        wanted = np.asarray(jnp.asarray(total) / harness.RANKS)
        self.assertEqual(y.dtype, wanted.dtype)
        np.testing.assert_array_equal(y[0].astype(np.float32), wanted.astype(np.float32))


if __name__ == "__main__":
    absltest.main()
