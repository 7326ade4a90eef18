"""From which size collectives run in levels."""

import types
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from jax_cxl._job import lifecycle
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import split, table


def spread(processes, per_process):
    ranks = np.arange(processes * per_process)
    found = split.of(ranks[None], {int(rank): int(rank) // per_process for rank in ranks})
    assert found is not None
    return found


class LevelsTableTest(parameterized.TestCase):
    @parameterized.parameters(
        (spread(2, 4), False, 100, True),
        (spread(2, 4), False, 99, False),
        (spread(4, 2), False, 100, True),
        # On CPUs, fewer than eight ranks do not run in levels.
        (spread(2, 3), False, 100, False),
        (spread(2, 2), True, 50, True),
        (spread(2, 2), True, 49, False),
        (spread(1, 8), False, 1 << 40, False),
        (None, False, 1 << 40, False),
    )
    def test_pays(self, found, on_gpus, num_bytes, expected):
        tuning = types.SimpleNamespace(levels_all_reduce_bytes=100, gpu_levels_all_reduce_bytes=50)
        runtime = mock.Mock(tuning=tuning)
        with mock.patch.object(lifecycle, "ensure_started", lambda: runtime):
            self.assertEqual(table.pays(Op.ALL_REDUCE, num_bytes, found, on_gpus), expected)
            self.assertFalse(table.pays(Op.PERMUTE, num_bytes, found, on_gpus))

    @parameterized.parameters(
        ((5.0, 5.0, 5.0), 1 << 62),
        ((1.0, 5.0, 1.0), 4096),
        ((1.0, 1.0, 5.0), 1 << 62),
        ((1.0, 1.0, 1.0), 64),
    )
    def test_limits(self, in_levels, expected):
        sizes = (64, 512, 4096)
        found = table.limits(
            Op.ALL_GATHER,
            dict.fromkeys(sizes, 2.0),
            dict(zip(sizes, in_levels, strict=True)),
            margin=0.5,
            on_gpus=False,
        )
        self.assertEqual(found, {"levels_all_gather_bytes": expected})


if __name__ == "__main__":
    absltest.main()
