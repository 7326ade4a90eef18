"""jax_cxl.psum_scatter against NumPy."""

import jax
import ml_dtypes
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized

import jax_cxl


def oracle(dim=0, tiled=False):
    def scatter(x):
        total = harness.fold(x)
        if tiled:
            return np.stack(np.split(total, len(x), dim))
        return np.moveaxis(total, dim, 0)

    return scatter


class PsumScatterTest(parameterized.TestCase):
    @parameterized.product(dim=(0, 1, 2, -1), tiled=(False, True), check_vma=(False, True))
    def test_dimensions(self, dim, tiled, check_vma):
        x = harness.uneven_values(*((8, 4, 12) if tiled else (4, 4, 4)))
        y = harness.run(
            lambda v: jax_cxl.psum_scatter(v, "i", scatter_dimension=dim, tiled=tiled),
            x,
            check_vma=check_vma,
        )
        harness.check_equal(y, oracle(dim, tiled)(x))

    @parameterized.product(dim=(0, 1), tiled=(False, True), check_vma=(False, True))
    @pytest.mark.sample(3)
    def test_transformations(self, dim, tiled, check_vma):
        # Among others, this covers untiled calls under vmap whose batch dimension comes after the
        # scattered dimension.
        harness.check_linear(
            lambda v: jax_cxl.psum_scatter(v, "i", scatter_dimension=dim, tiled=tiled),
            oracle(dim, tiled),
            4,
            4,
            check_vma=check_vma,
        )

    @parameterized.parameters(np.int8, np.uint32, np.float16, ml_dtypes.bfloat16, np.complex64)
    def test_dtypes(self, dtype):
        make = harness.values if np.dtype(dtype).kind in "iu" else harness.uneven_values
        x = make(4, 5, dtype=dtype)
        y = harness.run(lambda v: jax_cxl.psum_scatter(v, "i"), x)
        harness.check_equal(y, oracle()(x))

    @parameterized.parameters(False, True)
    def test_groups(self, check_vma):
        x = harness.uneven_values(2, 3)
        y = harness.run(
            lambda v: jax_cxl.psum_scatter(v, "i", axis_index_groups=harness.GROUPS),
            x,
            check_vma=check_vma,
        )
        harness.check_equal(y, harness.by_group(oracle())(x))

    def test_undoes_all_gather(self):
        x = harness.values(2, 3)
        y = harness.run(
            lambda v: jax_cxl.psum_scatter(jax_cxl.all_gather(v, "i", tiled=True), "i", tiled=True),
            x,
        )
        harness.check_equal(y, 4 * x)

    def test_wrong_sizes(self):
        for tiled, message in ((False, "tiled=True"), (True, "divisible")):
            with self.assertRaisesRegex(ValueError, message):
                harness.run(
                    lambda v, tiled=tiled: jax_cxl.psum_scatter(v, "i", tiled=tiled),
                    harness.values(6),
                )
        with self.assertRaisesRegex(ValueError, "out of bounds"):
            jax.vmap(lambda v: jax_cxl.psum_scatter(v, "i"), axis_name="i")(np.ones(4))


if __name__ == "__main__":
    absltest.main()
