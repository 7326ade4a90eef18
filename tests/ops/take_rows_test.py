"""jax_cxl.take_rows against NumPy."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl.ops import public as ops

ROWS, TAKEN = 23, 31


def oracle(table, indices):
    """Returns what all ranks take; table has the shape (ranks, rows, ...)."""
    whole = table.reshape(-1, *table.shape[2:])
    result = np.zeros((*indices.shape, *table.shape[2:]), table.dtype)
    inside = (indices >= 0) & (indices < len(whole))
    result[inside] = whole[indices[inside]]
    return result


def wanted(indices, rows):
    """Returns a mask of each rank's rows, True for rows that another rank takes."""
    ranks = len(indices)
    masks = np.zeros((ranks, rows), bool)
    for reader, taken in enumerate(indices):
        for index in taken:
            if 0 <= index < ranks * rows and index // rows != reader:
                masks[index // rows, index % rows] = True
    return masks


def draw(rng, kind, ranks=harness.RANKS, rows=ROWS, taken=TAKEN):
    """Returns the indices that all ranks take, (ranks, taken)."""
    if kind == "random":
        return rng.integers(0, ranks * rows, (ranks, taken)).astype(np.int32)
    if kind == "out of range":
        return rng.integers(-ranks * rows, 2 * ranks * rows, (ranks, taken)).astype(np.int32)
    if kind == "one row":
        return np.full((ranks, taken), rows + 1, np.int32)
    if kind == "one rank":
        return rng.integers(rows, 2 * rows, (ranks, taken)).astype(np.int32)
    if kind == "nothing":
        return np.full((ranks, taken), -1, np.int32)
    return np.tile(np.arange(taken, dtype=np.int32), (ranks, 1))  # runs of rows


KINDS = ("random", "out of range", "one row", "one rank", "nothing", "in order")


def take(arguments, **options):
    table, indices, *published = arguments
    masks = {"published": published[0]} if published else {}
    return ops.take_rows(table, indices, "i", **masks, **options)


class TakeRowsTest(parameterized.TestCase):
    def test_one_element(self):
        table, indices = harness.values(2, 1), np.array([[3], [0], [7], [-1]], np.int32)
        harness.check_equal(harness.run(take, (table, indices)), oracle(table, indices))

    @parameterized.product(
        dtype=(bool, np.int8, ml_dtypes.bfloat16, np.float32, np.complex64, ml_dtypes.int4),
        kind=KINDS,
    )
    @pytest.mark.sample(5)
    def test_values(self, dtype, kind):
        rng = np.random.default_rng(KINDS.index(kind))
        table = harness.values(ROWS, 3, dtype=np.int8).astype(dtype)
        indices = draw(rng, kind)
        for check_vma in (False, True):
            y = harness.run(take, (table, indices), check_vma=check_vma)
            harness.check_equal(y, oracle(table, indices))

    @parameterized.parameters(
        (1, 3000, 1), (7, 5000, 3), (300, 16, 1000), (4000, 13, 100_003), (3000, 4, 700_000)
    )
    @pytest.mark.sample(2)
    def test_lengths_of_rows(self, rows, row, times):
        rng = np.random.default_rng(row)
        row = min(row * times, 3_000_000)
        rows = min(rows, 8_000_000 // row + 1)
        table = rng.integers(0, 256, (harness.RANKS, rows, row), np.uint8)
        indices = draw(rng, "out of range", rows=rows, taken=rows + 3)
        masks = wanted(indices, rows)
        for arguments in ((table, indices), (table, indices, masks)):
            y = harness.run(take, arguments)
            harness.check_equal(y, oracle(table, indices))

    def test_many_calls_behind_each_other(self):
        rng = np.random.default_rng(0)
        table = rng.standard_normal((harness.RANKS, 700, 130)).astype(np.float32)
        indices = draw(rng, "random", rows=700, taken=700)

        def chain(arguments):
            x, i = arguments
            for _ in range(10):
                x = ops.take_rows(x, i, "i") + 1
            return x

        expected = table
        for _ in range(10):
            expected = oracle(expected, indices) + np.float32(1)
        harness.check_equal(harness.run(chain, (table, indices)), expected)

    def test_only_what_is_published_and_taken_goes_through_the_pool(self):
        rng = np.random.default_rng(0)
        table = rng.standard_normal((harness.RANKS, 900, 250)).astype(np.float32)
        indices = draw(rng, "random", rows=900, taken=200)
        masks = wanted(indices, 900)
        run = harness.program(take, check_vma=True)
        jax.block_until_ready(run((table, indices, masks)))
        before = jax_cxl.stats()
        jax.block_until_ready(run((table, indices, masks)))
        after = jax_cxl.stats()
        self.assertEqual(after.bytes_published - before.bytes_published, masks.sum() * 1000)
        others = indices // 900 != np.arange(harness.RANKS)[:, None]
        self.assertEqual(after.bytes_retrieved - before.bytes_retrieved, others.sum() * 1000)

    def test_groups(self):
        rng = np.random.default_rng(1)
        groups = [[0, 2], [3, 1]]
        table = harness.values(ROWS, 3)
        indices = draw(rng, "random", ranks=4)[:, :TAKEN] % (2 * ROWS)
        y = harness.run(lambda a: take(a, axis_index_groups=groups), (table, indices))
        for group in groups:
            harness.check_equal(np.asarray(y)[group], oracle(table[group], indices[group]))

    @parameterized.parameters(np.int8, np.uint8, np.int32, np.uint32)
    def test_indices_of_other_types(self, dtype):
        table = harness.values(9, 3)
        indices = np.arange(harness.RANKS * 12, dtype=dtype).reshape(harness.RANKS, -1)
        harness.check_equal(
            harness.run(take, (table, indices)), oracle(table, indices.astype(np.int32))
        )

    def test_gradient(self):
        rng = np.random.default_rng(2)
        table = rng.integers(-9, 9, (harness.RANKS, ROWS, 3)).astype(np.float32)
        indices = draw(rng, "out of range")
        weights = rng.integers(-9, 9, (harness.RANKS, TAKEN, 3)).astype(np.float32)

        def gradient(arguments):
            x, i, w = arguments
            return jax.grad(lambda x: (ops.take_rows(x, i, "i") * w).sum())(x)

        expected = np.zeros((harness.RANKS * ROWS, 3), np.float32)
        inside = (indices >= 0) & (indices < len(expected))
        np.add.at(expected, indices[inside], weights[inside])
        for check_vma in (False, True):
            y = harness.run(gradient, (table, indices, weights), check_vma=check_vma)
            harness.check_equal(y, expected.reshape(table.shape))

    @parameterized.product(table_batched=(False, True), indices_batched=(False, True))
    def test_vmap(self, table_batched, indices_batched):
        rng = np.random.default_rng(3)
        batch = 3
        table = rng.standard_normal((harness.RANKS, batch, ROWS, 3)).astype(np.float32)
        indices = np.stack([draw(rng, "out of range") for _ in range(batch)], 1)
        if not table_batched:
            table = table[:, 0]
        if not indices_batched:
            indices = indices[:, 0]
        axes = (0 if table_batched else None, 0 if indices_batched else None)
        if axes == (None, None):
            return
        y = harness.run(
            lambda a: jax.vmap(lambda x, i: ops.take_rows(x, i, "i"), axes)(*a), (table, indices)
        )
        expected = [
            oracle(
                table[:, b] if table_batched else table,
                indices[:, b] if indices_batched else indices,
            )
            for b in range(batch)
        ]
        harness.check_equal(y, np.stack(expected, 1))

    def test_axis_of_vmap(self):
        rng = np.random.default_rng(4)
        table, indices = harness.values(ROWS, 3), draw(rng, "out of range")
        y = jax.vmap(lambda x, i: ops.take_rows(x, i, "j"), axis_name="j")(table, indices)
        harness.check_equal(y, oracle(table, indices))

    def test_refusals(self):
        def refused(kind, text, table, indices, **options):
            with self.assertRaisesRegex(kind, text):
                harness.run(lambda a: ops.take_rows(*a, "i", **options), (table, indices))

        table = harness.values(ROWS, 3)
        refused(TypeError, "must be integers", table, np.ones((harness.RANKS, 3), np.float32))
        refused(ValueError, "a vector", table, np.ones((harness.RANKS, 3, 1), np.int32))
        indices = np.ones((harness.RANKS, 3), np.int32)
        refused(ValueError, "23 booleans", table, indices, published=jnp.ones(ROWS + 1, bool))
        refused(ValueError, "23 booleans", table, indices, published=jnp.ones(ROWS, np.int8))


if __name__ == "__main__":
    absltest.main()
