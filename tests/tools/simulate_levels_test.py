"""The model of hosts with several GPUs, and what the study of levels claims."""

import json
import pathlib
import unittest

import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import compose, split, table

try:
    from lab.simulator import constants as c, levels, levels_study, model, nccl, report
except ImportError as error:
    raise unittest.SkipTest(str(error)) from error


class _Clocks:
    """Replaces the functions that move data. Clocks advance with each step that `compose` runs."""

    def __init__(self, each: levels.Stages) -> None:
        self.each = each
        self.inside = self.pool = 0.0

    def reduce_scatter(self, x):
        self.inside += self.each.before
        return x[0]

    def all_to_all(self, x):
        self.inside += self.each.before
        return x

    def all_gather(self, x):
        self.inside += self.each.after
        return jnp.stack([x, x])

    def start(self, op, x, root):
        self.pool = max(self.pool, self.inside) + self.each.pool
        y = jnp.stack([x, x]) if op.result_blocks and not op.operand_blocks else x
        return _Started(self, y[0] if op is Op.REDUCE_SCATTER else y, self.pool)


class _Started:
    token = None

    def __init__(self, clocks: _Clocks, y, end: float) -> None:
        self.clocks, self.y, self.end = clocks, y, end

    def tie(self, x):
        return x

    def done(self, after):
        self.clocks.inside = max(self.clocks.inside, self.end)
        return self.y


class LevelsTest(parameterized.TestCase):
    def _setting(self, **changes) -> model.Setting:
        machine = {"hosts": 4, "gpus_per_host": 8, "links_per_host": 2, "cards": 12}
        return model.Setting(**(machine | changes))

    @parameterized.product(op=levels.OPS, hosts=(2, 4, 16))
    def test_bytes_of_levels_are_the_least(self, op, hosts):
        setting = self._setting(hosts=hosts)
        size = 16 * c.MIB
        mine = levels.counted_bytes(op, size, setting, flat=False)
        least = levels.least_bytes(op, size, setting)
        self.assertAlmostEqual(sum(mine.link) / sum(least.link), 1, delta=0.01)
        self.assertAlmostEqual(sum(mine.card) / sum(least.card), 1, delta=0.04)
        flat = levels.counted_bytes(op, size, setting, flat=True)
        self.assertGreater(sum(flat.link), sum(mine.link))

    # Computed by hand, from the blocks of each pair of ranks. A host has two ranks.
    def test_least_bytes_by_hand(self):
        setting = model.Setting(hosts=3, gpus_per_host=2, links_per_host=1, cards=2)
        size = 600
        self.assertEqual(
            levels.least_bytes("all_reduce", size, setting).link, (size, 2 * 2 / 3 * size)
        )
        self.assertEqual(levels.least_bytes("all_gather", size, setting).link, (200, 400))
        self.assertEqual(levels.least_bytes("reduce_scatter", size, setting).link, (400, 400))
        # Each of two GPUs sends four of six blocks of 100 to other hosts.
        self.assertEqual(levels.least_bytes("all_to_all", size, setting).link, (800, 800))
        self.assertEqual(levels.least_bytes("all_to_all", size, setting).card, (1200, 1200))

    @parameterized.product(op=levels.OPS, chunks=(1, 2, 8))
    def test_no_time_is_below_that_of_a_stage(self, op, chunks):
        for size in (64 * c.KIB, 64 * c.MIB):
            each = levels.stages(op, size, self._setting(), chunks)
            alone = chunks * max(each.before, each.pool, each.after)
            self.assertBetween(each.overlapped, alone, each.one_after_another)
            self.assertEqual(each.overlapped < each.one_after_another, chunks > 1)

    # The clocks advance by the steps that jax_cxl runs, in its order. The model has to give the
    # same time.
    @parameterized.product(
        op=levels.OPS, times=((3.0, 5.0, 2.0), (5.0, 3.0, 7.0), (2.0, 9.0, 4.0), (4.0, 1.0, 1.0))
    )
    def test_the_order_is_that_of_the_composition(self, op, times):
        chunks = 4
        before, pool, after = times
        each = levels.Stages(
            chunks=chunks,
            slicing=0.0,
            before=before if op in levels._EXCHANGED else 0.0,
            pool=pool,
            after=after if op in levels._GATHERED else 0.0,
            joining=0.0,
        )
        clocks = _Clocks(each)
        of = split.of(np.arange(4)[None], {rank: rank // 2 for rank in range(4)})
        composed = compose.Levels(of, clocks, clocks)
        composed.run(Op[op.upper()], jnp.zeros((4, 8)), 0, chunks)
        self.assertEqual(clocks.inside, each.overlapped)

    # With this size, the larger buffer of the step through the pool has two chunks, or both its
    # operand and its result have two.
    @parameterized.parameters(("all_reduce", 2), ("all_gather", 2), ("all_gather", 4))
    def test_chunks_are_those_that_jax_cxl_makes(self, op, hosts):
        setting = self._setting(hosts=hosts)
        size = 2 * table.CHUNK_BYTES * setting.gpus_per_host
        for chunk_bytes, chunks in ((table.CHUNK_BYTES, 2), (2 * table.CHUNK_BYTES, 1)):
            time = levels.stages(op, size, setting, chunks).overlapped
            self.assertEqual(levels.seconds(op, size, setting, chunk_bytes), time)

    def test_chunks_overlap_only_beside_the_links_to_the_pool(self):
        size = 256 * c.MIB
        for inside, overlaps in (("nvlink", True), ("pcie", False), ("none", False)):
            setting = self._setting(inside=inside)
            each = levels.stages("all_reduce", size, setting, table.MOST_CHUNKS)
            time = levels.seconds("all_reduce", size, setting)
            self.assertEqual(time, each.overlapped if overlaps else each.one_after_another)

    def test_a_host_of_one_gpu_has_no_levels(self):
        setting = model.Setting(hosts=4)
        for op in levels.OPS:
            self.assertEqual(
                levels.seconds(op, c.MIB, setting), levels.flat_seconds(op, c.MIB, setting)
            )

    def test_where_levels_pay(self):
        setting = levels_study.KINDS[0].setting(2)
        sizes = levels_study.sizes(2)
        runs = levels.paying("reduce_scatter", setting, sizes)
        self.assertEqual(runs[-1][1], sizes[-1])
        for size in sizes:
            faster = levels.seconds("reduce_scatter", size, setting) < levels.flat_seconds(
                "reduce_scatter", size, setting
            )
            self.assertEqual(any(low <= size <= high for low, high in runs), faster)

    def test_adapters_and_gpus_of_nccl(self):
        rate = c.INFINIBAND * c.NCCL_EFFICIENCY
        size = 4 * c.GIB
        for adapters in (1, 8):
            time = nccl.seconds("all_gather", size, 4, gpus_per_host=8, adapters=adapters)
            self.assertAlmostEqual(time / (31 / 32 * size / adapters / rate), 1, delta=0.01)
            time = nccl.seconds("all_to_all", size, 4, gpus_per_host=8, adapters=adapters)
            self.assertAlmostEqual(time / (8 * 3 / 4 * size / adapters / rate), 1, delta=0.01)
        inside = nccl.inside_seconds("all_gather", size, 8, "nvlink")
        self.assertAlmostEqual(
            inside / (7 / 8 * size / c.INSIDE_RATES["nvlink"]["all_gather"]), 1, delta=0.01
        )

    def test_kept_results_are_what_the_model_says(self):
        root = pathlib.Path(__file__).parents[2]
        found = json.loads((root / "benchmarks" / "results" / levels_study.RESULTS).read_text())
        rows = [row for row in found["results"] if row["hosts"] == 4]
        self.assertLen(rows, 4 * len(levels_study.KINDS))
        for row in rows:
            kind = levels_study.Kind(row["links"], row["cards_per_host"], row["inside"])
            self.assertEqual(tuple(row["bytes"]), levels_study.sizes(4))
            for size, kept in zip(row["bytes"], row["levels_us"], strict=True):
                time = levels.seconds(row["op"], size, kind.setting(4))
                self.assertAlmostEqual(kept / (time / c.US), 1, delta=1e-3, msg=str(row))

    @pytest.mark.long
    def test_document_says_what_the_model_says_of_levels(self):
        # This leaves out 32 hosts, the last column, which would take most of the time.
        root = pathlib.Path(__file__).parents[2]
        documented = json.loads((root / "docs" / "data" / "model.json").read_text())["levels_pay"]
        for row, known in zip(report.levels_pay((2, 8)), documented, strict=True):
            self.assertEqual(list(row), known[: len(row)])


if __name__ == "__main__":
    absltest.main()
