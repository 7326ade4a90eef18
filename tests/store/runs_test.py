"""The bytes of a part of an array lie in the fewest runs."""

import itertools

import numpy as np
from absl.testing import absltest

from jax_cxl._store.reading import geometry


def _slices(size):
    return [slice(a, b) for a in range(size) for b in range(a + 1, size + 1)]


class RunsTest(absltest.TestCase):
    def test_all_parts_of_small_arrays(self):
        for shape in ((), (4,), (1,), (3, 4), (4, 1), (2, 3, 2), (1, 3, 1)):
            x = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
            data = x.tobytes()
            for here in itertools.product(*map(_slices, shape)):
                starts, length = geometry.byte_runs(shape, x.itemsize, here)
                runs = [data[start : start + length] for start in starts]
                self.assertEqual(b"".join(runs), x[here].tobytes(), (shape, here))
                # Runs that follow one another without a gap would be one run.
                self.assertNotIn(length, np.diff(starts), (shape, here))


if __name__ == "__main__":
    absltest.main()
