"""Caches of rows: they keep all bits, they hold the right rows, and they report their hits."""

import threading

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from tables import StoreCase, expected_take, random_rows

import jax_cxl

_ROWS = 5000


def _skewed(count, seed=0):
    """Returns ids, a few of which occur often."""
    rng = np.random.default_rng(seed)
    return (rng.zipf(1.3, count) * 7919 % _ROWS).astype(np.int32)


class CacheTest(StoreCase):
    def open(self, rows, cache_rows, **options):
        self.create(rows, **options).close()
        return jax_cxl.Table.open(self.store, "table", cache_rows=cache_rows)

    @parameterized.product(dtype=("uint8", "bfloat16", "float32", "int4"), width=((), (3,), (500,)))
    @pytest.mark.sample(3)
    def test_same_bits(self, dtype, width):
        rows = random_rows((_ROWS, *width), dtype)
        table = self.open(rows, cache_rows=200)
        outside = np.array([0, -1, _ROWS, -_ROWS - 1, _ROWS - 1, 2**31 - 1], np.int32)
        for mode in ("fill", "clip"):
            take = jax.jit(lambda ids, m=mode: table.take(ids, mode=m))
            for seed in range(3):
                ids = np.concatenate([_skewed(3000, seed), outside])
                self.assert_bits(take(ids), expected_take(rows, ids, mode), f"{mode} {seed}")
                table.refresh_cache()
        self.assertGreater(table.stats().cache_found, 0)

    def test_frequent_rows_are_found(self):
        rows = random_rows((_ROWS, 8), "float32")
        table = self.open(rows, cache_rows=400)
        take = jax.jit(table.take)
        ids = _skewed(3000)
        take(ids).block_until_ready()
        before = table.stats()
        self.assertEqual((before.rows_taken, before.cache_rows), (3000, 400))
        self.assertEqual((before.cache_wanted, before.cache_found), (3000, 0))
        table.refresh_cache()
        take(ids).block_until_ready()
        after = table.stats()
        _, counts = np.unique(ids, return_counts=True)
        best = np.sort(counts)[-400:].sum()
        found = after.cache_found
        self.assertEqual(after.cache_wanted, 6000)
        self.assertLessEqual(found, best)
        # Rows of one bucket compete for its slots, so the cache lacks some of the most frequent
        # rows.
        self.assertGreater(found, 0.95 * best)
        self.assertEqual(after.cache_hit_rate, found / 6000)

    def test_the_cache_follows_what_is_taken(self):
        rows = random_rows((_ROWS, 8), "float32")
        table = self.open(rows, cache_rows=64)
        take = jax.jit(table.take)
        for first in (0, 1000, 4900):
            ids = np.tile(np.arange(first, first + 40, dtype=np.int32), 40)
            take(ids).block_until_ready()
            table.refresh_cache()
            before = table.stats().cache_found
            self.assert_bits(take(ids), rows[ids])
            # The cache has 8 buckets, each with room for 8 rows. If more than 8 of the 40 rows
            # belong to one bucket, some are not found.
            self.assertGreater(table.stats().cache_found - before, 0.8 * ids.size)

    def test_takes_during_a_refresh(self):
        rows = random_rows((_ROWS, 300), "uint32")
        table = self.open(rows, cache_rows=1000)
        take = jax.jit(table.take)
        stop, wrong = threading.Event(), []

        def read(seed):
            while not stop.is_set():
                ids = _skewed(4000, seed)
                wrong.append(int((np.asarray(take(ids)) != rows[ids]).sum()))

        readers = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
        for reader in readers:
            reader.start()
        for _ in range(20):
            table.refresh_cache()
        stop.set()
        for reader in readers:
            reader.join()
        self.assertEqual(sum(wrong), 0)

    def test_scales_have_a_cache_too(self):
        rows = np.random.default_rng(0).integers(-6, 7, (_ROWS, 4)).astype(np.int8)
        scales = np.random.default_rng(1).random(_ROWS, np.float32)
        table = self.open(rows, cache_rows=100, scales=scales)
        ids = _skewed(500)
        expected = rows[ids].astype(np.float32) * scales[ids][:, None]
        for _ in range(2):
            self.assert_bits(jax.jit(table.take)(ids), expected)
            table.refresh_cache()
        self.assertGreater(table.stats().cache_found, 0)
        self.assertEqual(table.stats().rows_taken, 2 * 2 * 500)

    def test_more_slots_than_rows(self):
        rows = random_rows((5, 3), "float32")
        table = self.open(rows, cache_rows=10**9)
        self.assertEqual(table.stats().cache_rows, 5)
        for _ in range(2):
            self.assert_bits(table.take(np.arange(5)), rows)
            table.refresh_cache()
        self.assertEqual(table.stats().cache_hit_rate, 0.5)

    def test_wrong_uses(self):
        rows = random_rows((_ROWS, 3), "float32")
        table = self.create(rows)
        with self.assertRaisesRegex(jax_cxl.StoreError, "opened without cache_rows"):
            table.refresh_cache()
        self.assertEqual(table.stats().cache_hit_rate, 0)
        self.create(rows, name="trained", trained=True).close()
        for name, cache_rows, error, message in (
            ("trained", 5, jax_cxl.StoreError, "is a trained table, whose rows change"),
            ("table", -1, ValueError, "cache_rows=-1 must not be negative"),
            ("table", 1.5, TypeError, "cache_rows=1.5 must be an int"),
        ):
            with self.assertRaisesRegex(error, message):
                jax_cxl.Table.open(self.store, name, cache_rows=cache_rows)
        table.close()
        for call in (table.refresh_cache, table.stats):
            with self.assertRaisesRegex(jax_cxl.StoreError, "without cache_rows|was closed"):
                call()


if __name__ == "__main__":
    absltest.main()
