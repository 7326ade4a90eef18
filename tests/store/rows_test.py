"""The elements of a part of an array are those that its rows say."""

import itertools
import math

import numpy as np
from absl.testing import absltest

from jax_cxl._store.reading import geometry
from jax_cxl._store.trees import leaves


def _bounds(size):
    return [(a, b) for a in range(size) for b in range(a + 1, size + 1)]


def _slices(index):
    return tuple(slice(*bounds) for bounds in index)


class RowsTest(absltest.TestCase):
    def check(self, shape, shards, most):
        x = np.arange(math.prod(shape)).reshape(shape)
        leaf = leaves.Leaf("", "int64", shape, tuple(leaves.Shard(s, (0,)) for s in shards))
        for index in itertools.product(*map(_bounds, shape)):
            out = np.full(geometry.shape_of(index), -1)
            for rows in geometry.rows(leaf, index, most):
                flat = x[_slices(shards[rows.shard])].reshape(-1)
                flat = flat[rows.start : rows.start + math.prod(rows.shape)]
                wanted = np.zeros(rows.shape, bool)
                wanted[_slices(rows.here)] = True
                between = np.diff(np.flatnonzero(wanted)) - 1
                self.assertFalse(np.any(between > most))
                # The rows begin and end at most `most` elements before and after what is wanted.
                self.assertLessEqual(rows.here[-1][0] if shape else 0, most)
                self.assertTrue(np.all(out[_slices(rows.there)] == -1))
                out[_slices(rows.there)] = flat.reshape(rows.shape)[_slices(rows.here)]
            np.testing.assert_array_equal(out, x[_slices(index)])

    def test_all_parts_of_small_arrays(self):
        for shape in ((), (4,), (1,), (3, 4), (4, 1), (2, 3, 2), (1, 3, 1)):
            whole = tuple((0, n) for n in shape)
            for most in (0, 2, 3, 4, math.inf):
                self.check(shape, [whole], most)
                if shape and shape[-1] > 1:
                    parts = [(0, 1), (1, shape[-1])]
                    self.check(shape, [(*whole[:-1], part) for part in parts], most)


if __name__ == "__main__":
    absltest.main()
