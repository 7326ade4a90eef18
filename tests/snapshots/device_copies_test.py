"""Saves of arrays on GPUs, with the host in place of GPUs: the order of copies and checks."""

import types
from unittest import mock

import host_as_gpu
import jax
import numpy as np
import places
import pytest
from absl.testing import absltest, parameterized
from hypothesis import given, settings, strategies as st

import jax_cxl
from jax_cxl._store.memory import layout
from jax_cxl._store.trees import place
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


class _OnGpu(shard_bytes.DeviceBytes):
    """The bytes of an array on a GPU, represented by the number of each byte."""

    def __init__(self, ordinal, numbers):
        self.ordinal, self.numbers = ordinal, numbers


class _OnHost:
    def __init__(self, numbers):
        self.numbers = numbers


_ALIGN, _BLOCK = 64, 256  # A block of the memory has a MiB.


@st.composite
def _batches(draw):
    """Returns batches of arrays as a process writes them.

    The second result is the number that each byte of the memory must get, 0 between the arrays.
    """
    number, offset, numbers = 1, 0, [np.zeros(0, int)]
    batches = []
    sizes = st.integers(1, 200) | st.integers(1, 5000) | st.integers(1, 12).map(_BLOCK.__mul__)
    for of_batch in draw(st.lists(st.lists(sizes, max_size=5), max_size=5)):
        batches.append([])
        for size in of_batch:
            held = np.arange(number, number + size)
            number += size
            gpu = draw(st.sampled_from([None, 0, 1, 2]))
            first = draw(st.integers(0, 3)) * 1000  # in the shard that it is a part of
            part = place.Part(0, 0, 0, 0, first, first + size, offset)
            batches[-1].append((part, _OnHost(held) if gpu is None else _OnGpu(gpu, held)))
            numbers += [held, np.zeros(-size % _ALIGN, int)]
            offset += size + -size % _ALIGN
    total = layout.blocks(offset) * layout.BLOCK_BYTES
    numbers.append(np.zeros(total - offset, int))
    return batches, np.concatenate(numbers)


class ChunksTest(absltest.TestCase):
    @mock.patch.object(layout, "BLOCK_BYTES", _BLOCK)
    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(_batches(), st.sampled_from([(1, 1), (3, 3), (2, 1), (4, 3)]), st.integers(1, 4))
    def test_each_byte_is_copied_once(self, made, form, rows_of_chunk):
        batches, expected = made
        num_devices, blocks_per_row = form
        geometry = types.SimpleNamespace(num_devices=num_devices, blocks_per_row=blocks_per_row)
        own = types.SimpleNamespace(section=types.SimpleNamespace(geometry=geometry))
        row = blocks_per_row * _BLOCK
        chunk = rows_of_chunk * row
        total = len(expected)
        copied = np.full(total, -1)
        pieces = device_copies._pieces(own, batches, chunk, total)
        for of_chunk in device_copies._chunks(pieces, chunk):
            start, end = of_chunk[0].start, of_chunk[-1].end
            self.assertLessEqual(end - start, chunk)
            self.assertEqual(start % row, 0)
            self.assertTrue(end % row == 0 or end == total)
            at = start
            for piece in of_chunk:
                self.assertEqual(piece.start, at)
                at = piece.end
                if num_devices > 1:  # The next block is on another device.
                    self.assertEqual(piece.start // _BLOCK, (at - 1) // _BLOCK)
                self.assertTrue((copied[piece.start : at] == -1).all())
                size = at - piece.start
                copied[piece.start : at] = (
                    piece.held.numbers[piece.first : piece.first + size] if piece.held else 0
                )
        np.testing.assert_array_equal(copied, expected)


class DeviceCopiesTest(parameterized.TestCase):
    @parameterized.parameters((1, 0), (3, 0), (2, 1), (3, 1))
    @pytest.mark.sample(3)
    def test_what_was_saved_is_restored(self, paths, parity):
        copies = host_as_gpu.Copies()
        with places.place(_tree(0), paths=paths, parity=parity) as place:
            snapshots = place.open(parity=parity)
            snapshots._look(make=True).section.devices._copies = copies
            with host_as_gpu.arrays_on_gpus():
                for step in range(3):
                    snapshots.save(step, _tree(step))
                snapshots.wait()
            places.assert_same(self, (2, _tree(2)), snapshots.restore_latest(_tree(0)))
            places.assert_same(self, _tree(1), snapshots.restore(1, _tree(0)))
            if parity:
                snapshots.close()  # Otherwise its heartbeat may write to the lost device.
                place.zero(1)
                again = place.open(parity=parity)
                places.assert_same(self, (2, _tree(2)), again.restore_latest(_tree(0)))
        self.assertGreater(copies.most_under_way, 0)
        # The array "large" has 19 blocks. Of these, GPUs check only the blocks that lie in a single
        # part.
        self.assertGreater(copies.checked, 3 * 12)

    def test_a_wrong_copy_is_found(self):
        copies = host_as_gpu.Copies()
        copies.wrong_copy = 0  # The first copy belongs to "large", and has whole blocks.
        with places.place(_tree(0)) as place:
            snapshots = place.open()
            snapshots._look(make=True).section.devices._copies = copies
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
            snapshots._look(make=True).section.devices._copies = copies
            with host_as_gpu.arrays_on_gpus():
                snapshots.save(1, _tree(1))
                snapshots.wait()
            places.assert_same(self, _tree(1), snapshots.restore(1, _tree(0)))
        # Two of the 20 chunks are under way at a time. Only copies of ends of parts can be under
        # way besides them.
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
            snapshots._look(make=True).section.devices._copies = copies
            with host_as_gpu.arrays_on_gpus():
                snapshots.save(1, tree)
                snapshots.wait()
            places.assert_same(self, tree, snapshots.restore(1, tree))
        order = list(gpu_of.values())
        self.assertGreater(len(order), 4 * 17)
        self.assertEqual(order[:40], [0, 1, 2, 3] * 10)
        # In memory, the parts of the GPUs follow one another, that of GPU 0 first.
        self.assertEqual([gpu_of[t] for t in sorted(gpu_of)][:12], [0] * 12)


if __name__ == "__main__":
    absltest.main()
