"""expert_placement against all placements of small problems."""

import itertools
import sys
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

import jax_cxl


def load_and_crossing(counts, rank_of):
    """Returns the largest number of rows at a rank, and how many rows come from other ranks."""
    load = np.bincount(rank_of, counts.sum(0), len(counts)).max()
    return load, counts.sum() - counts[rank_of, np.arange(len(rank_of))].sum()


def best(counts, slack):
    """Returns the smallest possible value of the largest load.

    Also returns the fewest rows that can come from other ranks if the largest load may exceed
    that value by the share `slack`.
    """
    ranks, experts = counts.shape
    holders = np.repeat(np.arange(ranks), experts // ranks)
    every = [np.array(p) for p in set(itertools.permutations(holders))]
    found = [load_and_crossing(counts, rank_of) for rank_of in every]
    smallest = min(load for load, _ in found)
    return smallest, min(cross for load, cross in found if load <= smallest * (1 + slack))


class PlacementTest(parameterized.TestCase):
    @parameterized.product(shape=((2, 4), (2, 8), (3, 6)), slack=(0.0, 0.2))
    def test_close_to_the_best(self, shape, slack):
        ranks, experts = shape
        for seed in range(3):
            rng = np.random.default_rng(seed)
            counts = rng.zipf(1.6, shape).clip(max=500)
            place = jax_cxl.expert_placement(counts, slack=slack)
            self.assertCountEqual(place, range(experts))
            load, crossing = load_and_crossing(counts, place // (experts // ranks))
            smallest, fewest = best(counts, slack)
            self.assertLessEqual(load, 1.02 * smallest * (1 + slack))
            self.assertLessEqual(crossing, 1.03 * fewest + 0.01 * counts.sum())

    def test_experts_of_a_rank_keep_their_order(self):
        place = jax_cxl.expert_placement([[9, 0, 9, 0], [0, 9, 0, 9]])
        np.testing.assert_array_equal(place, [0, 2, 1, 3])

    def test_one_rank_and_no_tokens(self):
        np.testing.assert_array_equal(jax_cxl.expert_placement([[5, 1, 2]]), [0, 1, 2])
        self.assertCountEqual(jax_cxl.expert_placement(np.zeros((2, 4))), range(4))

    @parameterized.parameters(([1, 2],), ([[1, -1]],), ([[]],), ([[1.0, np.nan]],))
    def test_wrong_counts(self, counts):
        with self.assertRaisesRegex(ValueError, "counts must be"):
            jax_cxl.expert_placement(counts)

    def test_uneven(self):
        with self.assertRaisesRegex(ValueError, "3, must be a multiple of the number of ranks, 2"):
            jax_cxl.expert_placement(np.ones((2, 3)))

    def test_without_scipy(self):
        with (
            mock.patch.dict(sys.modules, {"scipy": None}),
            self.assertRaisesRegex(ImportError, r"pip install 'jax_cxl\[moe\]'"),
        ):
            jax_cxl.expert_placement(np.ones((2, 2)))


if __name__ == "__main__":
    absltest.main()
