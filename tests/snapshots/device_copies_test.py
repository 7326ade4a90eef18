"""Saves of arrays on GPUs, with the host in the place of GPUs: the order of copies and checks."""

from unittest import mock

import host_as_gpu
import jax
import numpy as np
import places
import pytest
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.writing import device_copies, shard_bytes


def _tree(step):
    rng = np.random.default_rng(step)
    mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,))
    replicated = jax.NamedSharding(mesh, jax.P())
    return {
        "large": jax.device_put(rng.standard_normal(5_000_001, np.float32), replicated),
        "host": rng.integers(0, 100, 300_001),
        "small": jax.device_put(rng.integers(0, 100, 7), replicated),
        "step": step,
    }


class FormatTest(absltest.TestCase):
    def test_only_rows_in_order_can_be_read_in_place(self):
        array = mock.Mock(ndim=2)
        for major_to_minor, expected in (((0, 1), True), ((1, 0), False)):
            array.format.layout.major_to_minor = major_to_minor
            self.assertEqual(shard_bytes._is_row_major(array), expected)
        array.format.layout = None
        self.assertTrue(shard_bytes._is_row_major(array))


class DeviceCopiesTest(parameterized.TestCase):
    @parameterized.parameters((1, 0), (3, 0), (2, 1), (3, 1))
    @pytest.mark.sample(3)
    def test_what_was_saved_is_restored(self, paths, parity):
        copies = host_as_gpu.Copies()
        with places.place(_tree(0), paths=paths, parity=parity) as place:
            snapshots = place.open(parity=parity)
            snapshots._publisher.section.devices._copies = copies
            with host_as_gpu.arrays_on_gpus():
                for step in range(3):
                    snapshots.save(step, _tree(step))
                snapshots.wait()
            places.assert_same(self, (2, _tree(2)), snapshots.restore_latest(_tree(0)))
            places.assert_same(self, _tree(1), snapshots.restore(1, _tree(0)))
            if parity:
                place.zero(1)
                again = place.open(parity=parity)
                places.assert_same(self, (2, _tree(2)), again.restore_latest(_tree(0)))
        self.assertGreater(copies.most_under_way, 0)
        # "large" has 19 blocks, some of which lie in two parts.
        self.assertGreater(copies.checked, 3 * 12)

    def test_a_wrong_copy_is_found(self):
        copies = host_as_gpu.Copies()
        copies.wrong_copy = 0  # The first copy belongs to "large", and has whole blocks.
        with places.place(_tree(0)) as place:
            snapshots = place.open()
            snapshots._publisher.section.devices._copies = copies
            with host_as_gpu.arrays_on_gpus():
                snapshots.save(1, _tree(1))
                snapshots.wait()
            with self.assertRaisesRegex(jax_cxl.StoreError, "block .* is damaged"):
                snapshots.restore(1, _tree(0))

    def test_few_copies_are_under_way(self):
        copies = host_as_gpu.Copies()
        with (
            mock.patch.object(device_copies, "_CHUNK_BYTES", 1 << 20),
            mock.patch.object(device_copies, "_CHUNKS_UNDER_WAY", 2),
            mock.patch.object(jax, "local_device_count", lambda: 1),
            places.place(_tree(0)) as place,
        ):
            snapshots = place.open()
            snapshots._publisher.section.devices._copies = copies
            with host_as_gpu.arrays_on_gpus():
                snapshots.save(1, _tree(1))
                snapshots.wait()
            places.assert_same(self, _tree(1), snapshots.restore(1, _tree(0)))
        # 20 chunks, of which two have at most some ends of parts besides.
        self.assertBetween(copies.most_under_way, 2, 6)

    def test_all_gpus_copy_at_once(self):
        copies, gpu_of = host_as_gpu.Copies(), {}
        start = copies.start

        def record(ordinal, of_chunk):
            with copies._lock:
                gpu_of.update({target: ordinal for _, target, _ in of_chunk})
            return start(ordinal, of_chunk)

        copies.start = record
        # Each device has 12 MiB of the first array, and 5.5 MiB of the second one.
        shapes = {"a": (4, 3 << 20), "b": (8, 720_896)}
        rng = np.random.default_rng(0)
        tree = {k: rng.standard_normal(shape, np.float32) for k, shape in shapes.items()}
        mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,))
        tree = jax.device_put(tree, jax.NamedSharding(mesh, jax.P("x")))
        with (
            mock.patch.object(device_copies, "_CHUNK_BYTES", 1 << 20),
            places.place(tree) as place,
        ):
            snapshots = place.open()
            snapshots._publisher.section.devices._copies = copies
            with host_as_gpu.arrays_on_gpus():
                snapshots.save(1, tree)
                snapshots.wait()
            places.assert_same(self, tree, snapshots.restore(1, tree))
        order = list(gpu_of.values())
        self.assertGreater(len(order), 4 * 17)
        self.assertEqual(order[:40], [0, 1, 2, 3] * 10)
        # The places are those of one GPU after the other.
        self.assertEqual([gpu_of[t] for t in sorted(gpu_of)][:12], [0] * 12)


if __name__ == "__main__":
    absltest.main()
