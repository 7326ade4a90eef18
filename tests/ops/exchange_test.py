"""jax_cxl.all_to_all, ppermute and what is built on them, against NumPy."""

import ml_dtypes
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized

from jax_cxl.ops import public as ops


def all_to_all(split, concat, tiled):
    def exchange(x):
        n = len(x)
        parts = [np.split(v, n, split) for v in x]
        if not tiled:
            parts = [[p.squeeze(split) for p in row] for row in parts]
        join = np.concatenate if tiled else np.stack
        return np.stack([join([parts[i][j] for i in range(n)], concat) for j in range(n)])

    return exchange


def ppermute(perm):
    def permute(x):
        y = np.zeros_like(x)
        for source, destination in perm:
            y[destination] = x[source]
        return y

    return permute


PERMUTATIONS = ([(0, 1), (1, 2), (2, 3), (3, 0)], [(0, 3), (2, 2)], [(0, 1)], [])


class AllToAllTest(parameterized.TestCase):
    @parameterized.product(split=(0, 1, 2, -1), concat=(0, 1, 2), tiled=(False, True))
    def test_axes(self, split, concat, tiled):
        x = harness.uneven_values(*((8, 4, 12) if tiled else (4, 4, 4)))
        y = harness.run(lambda v: ops.all_to_all(v, "i", split, concat, tiled=tiled), x)
        harness.check_equal(y, all_to_all(split, concat, tiled)(x))

    @parameterized.product(
        axes=((0, 0), (0, 1), (1, 0)), tiled=(False, True), check_vma=(False, True)
    )
    @pytest.mark.sample(3)
    def test_transformations(self, axes, tiled, check_vma):
        harness.check_linear(
            lambda v: ops.all_to_all(v, "i", *axes, tiled=tiled),
            all_to_all(*axes, tiled),
            4,
            4,
            check_vma=check_vma,
        )

    @parameterized.parameters(bool, np.int8, ml_dtypes.bfloat16, np.complex64)
    def test_dtypes(self, dtype):
        x = harness.values(4, 3, dtype=dtype)
        y = harness.run(lambda v: ops.all_to_all(v, "i", 0, 1), x)
        harness.check_equal(y, all_to_all(0, 1, False)(x))

    def test_groups(self):
        x = harness.values(2, 3)
        y = harness.run(lambda v: ops.all_to_all(v, "i", 0, 1, axis_index_groups=harness.GROUPS), x)
        harness.check_equal(y, harness.by_group(all_to_all(0, 1, False))(x))

    def test_pswapaxes(self):
        x = harness.values(3, 4)
        y = harness.run(lambda v: ops.pswapaxes(v, "i", 1), x)
        harness.check_equal(y, np.swapaxes(x, 0, 2))

    def test_wrong_sizes(self):
        for tiled, message in ((False, "equal to"), (True, "divisible")):
            with self.assertRaisesRegex(ValueError, message):
                harness.run(
                    lambda v, tiled=tiled: ops.all_to_all(v, "i", 0, 0, tiled=tiled),
                    harness.values(6),
                )


class PpermuteTest(parameterized.TestCase):
    @parameterized.product(perm=PERMUTATIONS, check_vma=(False, True))
    @pytest.mark.sample(3)
    def test_transformations(self, perm, check_vma):
        harness.check_linear(
            lambda v: ops.ppermute(v, "i", perm),
            ppermute(perm),
            2,
            3,
            check_vma=check_vma,
        )

    def test_pshuffle(self):
        x = harness.values(3)
        y = harness.run(lambda v: ops.pshuffle(v, "i", [2, 0, 3, 1]), x)
        harness.check_equal(y, x[[2, 0, 3, 1]])
        with self.assertRaisesRegex(ValueError, "not a permutation"):
            harness.run(lambda v: ops.pshuffle(v, "i", [0, 0, 1, 2]), x)

    @parameterized.parameters(
        (ValueError, "unique", [(0, 1), (2, 1)]),
        (ValueError, "unique", [(0, 1), (0, 2)]),
        (ValueError, "out of bounds", [(0, 4)]),
        (ValueError, "out of bounds", [(-5, 0)]),
        (TypeError, "list or tuple", {0: 1}),
    )
    def test_wrong_permutations(self, error, message, perm):
        with self.assertRaisesRegex(error, message):
            harness.run(lambda v: ops.ppermute(v, "i", perm), harness.values(2))


if __name__ == "__main__":
    absltest.main()
