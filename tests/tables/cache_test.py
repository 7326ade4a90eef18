"""Caches of rows, which only GPUs have: what else calls of caches do. lab/fuzz has their takes."""

import jax
import numpy as np
from absl.testing import absltest
from tables import StoreCase, random_rows

import jax_cxl


class CacheTest(StoreCase):
    def test_cpu_devices_have_none(self):
        rows = random_rows((50, 3), "float32")
        self.create(rows).close()
        table = jax_cxl.Table.open(self.store, "table", cache_rows=10**9)
        self.assertEqual(table.stats(), jax_cxl.TableStats(0, 50, 0, 0))
        for _ in range(2):
            self.assert_bits(jax.jit(table.take)(np.arange(50)), rows)
            table.refresh_cache()
        self.assertEqual(table.stats(), jax_cxl.TableStats(100, 50, 0, 0))
        self.assertEqual(table.stats().cache_hit_rate, 0)

    def test_hit_rate(self):
        self.assertEqual(jax_cxl.TableStats(9, 5, 8, 2).cache_hit_rate, 0.25)

    def test_wrong_uses(self):
        rows = random_rows((50, 3), "float32")
        table = self.create(rows)
        with self.assertRaisesRegex(jax_cxl.StoreError, "opened without cache_rows"):
            table.refresh_cache()
        self.create(rows, name="trained", trained=True).close()
        for name, cache_rows, error, message in (
            ("trained", 5, jax_cxl.StoreError, "is a trained table, whose rows change"),
            ("table", -1, ValueError, "cache_rows=-1 must not be negative"),
            ("table", 1.5, TypeError, "cache_rows=1.5 must be an int"),
        ):
            with self.assertRaisesRegex(error, message):
                jax_cxl.Table.open(self.store, name, cache_rows=cache_rows)
        cached = jax_cxl.Table.open(self.store, "table", cache_rows=5)
        for closed in (table, cached):
            closed.close()
            for call in (closed.refresh_cache, closed.stats):
                with self.assertRaisesRegex(jax_cxl.StoreError, "without cache_rows|was closed"):
                    call()


if __name__ == "__main__":
    absltest.main()
