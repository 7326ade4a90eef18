"""A restored tree behaves like `like`: the same program runs, without another compilation."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import places
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.memory import layout
from jax_cxl._store.trees import leaves, place
from jax_cxl._store.writing import gpu_programs, saving, shard_bytes


def _mesh():
    return jax.make_mesh((8,), ("d",), (jax.sharding.AxisType.Auto,))


def _sharded(*spec, kind=None):
    sharding = jax.NamedSharding(_mesh(), jax.P(*spec), memory_kind=kind)
    return jax.device_put(jnp.arange(128.0).reshape(16, 8), sharding)


class LikeTest(parameterized.TestCase):
    def _restored(self, tree, like=None):
        with places.place(tree) as where:
            with where.open() as snapshots:
                snapshots.save(1, tree)
                snapshots.wait()
            return where.open().restore(1, tree if like is None else like)

    def test_the_step_is_not_compiled_again(self):
        state = {
            "w": _sharded("d"),
            "count": jnp.int32(3),
            "weak": jnp.asarray(2.0),
            "key": jax.random.key(0),
        }
        step = jax.jit(lambda s: jax.tree.map(lambda x: x, s))
        step(state)
        step(self._restored(state))
        self.assertEqual(step._cache_size(), 1)

    @parameterized.named_parameters(
        ("sharded", lambda: _sharded("d")),
        ("second", lambda: _sharded(None, "d")),
        ("padded", lambda: _sharded("d", None)),
        ("replicated", lambda: _sharded()),
        ("pinned", lambda: _sharded("d", kind="pinned_host")),
        ("unpinned", lambda: _sharded("d", kind="unpinned_host")),
        (
            "keys",
            lambda: jax.device_put(
                jax.random.split(jax.random.key(1), 8), jax.NamedSharding(_mesh(), jax.P("d"))
            ),
        ),
        ("uncommitted", lambda: jnp.arange(5)),
        ("weak", lambda: jnp.asarray(1)),
        ("committed", lambda: jax.device_put(jnp.arange(5), jax.devices()[3])),
    )
    def test_sharding(self, make):
        like = make()
        found = self._restored(like)
        self.assertEqual(found.sharding, like.sharding)
        self.assertEqual(str(found.sharding), str(like.sharding))
        self.assertEqual(found.committed, like.committed)
        self.assertEqual(found.aval, like.aval)

    def test_uncommitted_on_another_device(self):
        with jax.default_device(jax.devices()[5]):
            like = jnp.arange(4)
        found = self._restored(like)
        self.assertEqual((found.devices(), found.committed), ({jax.devices()[5]}, False))

    def test_weak_type_of_a_sharded_array(self):
        like = jax.jit(
            lambda: jnp.broadcast_to(2.0, (16,)) * 3.0, out_shardings=_sharded().sharding
        )()
        self.assertTrue(like.weak_type)
        places.assert_same(self, like, self._restored(like))
        self.assertTrue(self._restored(like).weak_type)
        self.assertFalse(self._restored(like, jnp.zeros(16)).weak_type)

    def test_containers_that_jax_does_not_know_are_refused_in_like(self):
        class Log(list):
            pass

        with places.place({"a": [1, 2]}) as where:
            snapshots = where.open()
            snapshots.save(1, {"a": [1, 2]})
            snapshots.wait()
            for restore in (lambda x: snapshots.restore(1, x), snapshots.restore_latest):
                with self.assertRaisesRegex(TypeError, r"\['a'\], of type Log"):
                    restore({"a": Log([1, 2])})
            places.assert_same(self, {"a": [1, 2]}, snapshots.restore(1, {"a": [0, 0]}))


class CopiesTest(parameterized.TestCase):
    """A snapshot is invalid if the copies of a replicated array differ."""

    def _copies(self, spec, values):
        mesh = jax.make_mesh((4, 2), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2)
        sharding = jax.NamedSharding(mesh, jax.P(*spec))
        devices = sharding.addressable_devices_indices_map((8,))
        shape = sharding.shard_shape((8,))
        arrays = [
            jax.device_put(np.full(shape, value, np.float32), device)
            for device, value in zip(devices, values, strict=True)
        ]
        return jax.make_array_from_single_device_arrays((8,), sharding, arrays)

    @parameterized.parameters(0, 1, 6, 7)
    def test_one_differs(self, which):
        same = [(), ("x",), ("y",)]
        for spec in same:
            values = np.zeros(8)
            values[which] = 1
            good = self._copies(spec, np.zeros(8))
            trees = [{"a": good, "b": self._copies(spec, v)} for v in (np.zeros(8), values)]
            with places.place(trees[0]) as where:
                snapshots = where.open()
                snapshots.save(1, trees[0])
                snapshots.save(2, trees[1])
                with self.assertRaisesRegex(jax_cxl.MismatchError, r"different values: \['b'\]"):
                    snapshots.save(3, trees[0])
                self.assertEqual(snapshots.latest(), 1)
                snapshots.save(3, trees[0])
                snapshots.wait()
                self.assertEqual(where.open().latest(), 3)

    def test_sums_are_zero_only_for_equal_copies(self):
        shards = tuple(leaves.Shard(((i, i + 1),), (0, 1, 2)) for i in range(3))
        tree = [leaves.Leaf(str(i), "float32", (3,), shards) for i in range(40)]
        rng = np.random.default_rng(0)
        values = {(leaf, s): int(rng.integers(1 << 63)) for leaf in range(40) for s in range(3)}
        self.assertEqual(self._columns(tree, values, None), [])
        for leaf in range(40):
            columns = self._columns(tree, values, (leaf, 1, 2))
            self.assertLen(columns, 1)
            self.assertIn(str(leaf), place.copied_leaves(tree, columns))
            self.assertLess(len(place.copied_leaves(tree, columns)), 4)

    def _columns(self, tree, values, changed):
        totals = []
        for writer in range(3):
            copies = place.copies(tree, writer)
            self.assertLen(copies, 120)
            checksums = [
                values[c.leaf, c.shard] + ((c.leaf, c.shard, c.holder) == changed) for c in copies
            ]
            batch = saving.Batch(
                [], [(c, lambda x=x: x) for c, x in zip(copies, checksums, strict=True)]
            )
            sums = [0] * layout.REPLICA_SUMS
            list(saving._summed([batch], sums))
            totals.append(sums)
        return [n for n, of in enumerate(zip(*totals, strict=True)) if sum(of) % (1 << 64)]

    @parameterized.parameters(
        *("bool", "int8", "uint16", "float16", "bfloat16", "float32", "int32", "complex64"),
        *("float8_e5m2",),
    )
    def test_sums_of_gpus_see_each_byte(self, dtype):
        rng = np.random.default_rng(0)
        x = rng.integers(0, 2, 300).astype(jnp.dtype(dtype))
        bits = x.view(np.uint8)
        seen = {self._sum(x)}
        for byte in range(0, len(bits), 7):
            changed = bits.copy()
            changed[byte] ^= 1
            seen.add(self._sum(changed.view(x.dtype)))
        swapped = np.concatenate([x[1:2], x[:1], x[2:]]) if x[0] != x[1] else x[::-1]
        seen.add(self._sum(swapped))
        self.assertLen(seen, len(range(0, len(bits), 7)) + 2)

    def _sum(self, x):
        return shard_bytes.sum_of(gpu_programs.sums([jnp.asarray(x)])[0])


class PlaceTest(absltest.TestCase):
    def test_bytes_of_a_shard_are_divided_evenly_among_its_holders(self):
        for size in (1, 63, 64, 65, 128, 129, 1000, 64 * 7, 64 * 7 + 1):
            for holders in (1, 2, 3, 5):
                shard = leaves.Shard(((0, size),), tuple(range(holders)))
                leaf = leaves.Leaf("a", "uint8", (size,), (shard,))
                placed = place.place([leaf], holders, 1, whole=False)
                share = -(-size // holders)
                at = 0
                for part in placed.parts:
                    self.assertEqual(part.start, at)
                    self.assertEqual(part.start % 64, 0)
                    # No process has more than an even share, except for alignment.
                    self.assertLessEqual(part.end - part.start, share + 63)
                    self.assertEqual(part.holder, part.writer)
                    at = part.end
                self.assertEqual(at, size)
                shares = [math.ceil(math.ceil(size * i / holders) / 64) for i in range(holders + 1)]
                ends = [min(size, 64 * share) for share in shares]
                expected = [(a, b) for a, b in itertools.pairwise(ends) if a < b]
                self.assertEqual([(p.start, p.end) for p in placed.parts], expected)

    def test_whole_shards_go_to_the_process_that_has_the_least(self):
        sizes = (1000, 300, 300, 300, 64)
        tree = [
            leaves.Leaf(str(i), "uint8", (n,), (leaves.Shard(((0, n),), (0, 1)),))
            for i, n in enumerate(sizes)
        ]
        placed = place.place(tree, 2, 1, whole=True)
        self.assertEqual([(part.start, part.end) for part in placed.parts], [(0, n) for n in sizes])
        self.assertEqual([part.writer for part in placed.parts], [0, 1, 1, 1, 1])
        self.assertEqual(placed.data_bytes, (1024, 320 * 3 + 64))

    def test_parts_of_a_writer_follow_each_other(self):
        shards = [leaves.Shard(((0, size),), (0,)) for size in (1, 64, 65, 3)]
        tree = [leaves.Leaf(str(i), "uint8", (s.index[0][1],), (s,)) for i, s in enumerate(shards)]
        placed = place.place(tree, 1, 1, whole=False)
        self.assertEqual([part.offset for part in placed.parts], [0, 64, 128, 256])
        self.assertEqual(placed.data_bytes, (320,))

    def test_rows_of_writers_follow_each_other_and_writer_0_is_last(self):
        sizes = (3 << 20, 1, (2 << 20) + 1, 5 << 20)
        shards = tuple(
            leaves.Shard(((sum(sizes[:i]), sum(sizes[: i + 1])),), (i,)) for i in range(len(sizes))
        )
        tree = [leaves.Leaf("a", "uint8", (sum(sizes),), shards)]
        for per_row in (1, 2, 3):
            placed = place.place(tree, len(sizes), per_row, whole=False)
            blocks = [4, 2, 4, 6]  # those of the data, and a table of checksums
            rows = [-(-count // per_row) for count in blocks]
            first = [sum(rows[1:]), 0, rows[1], rows[1] + rows[2]]
            self.assertEqual([placed.first_row(i) for i in range(4)], first)
            with_directory = -(-(blocks[0] + 1) // per_row)
            self.assertEqual(placed.total_rows(7), first[0] + with_directory)

    def test_host_bytes(self):
        x = np.arange(24, dtype=np.int32).reshape(4, 6)
        for start, end in ((0, 96), (4, 20), (7, 9), (95, 96)):
            held = shard_bytes.HostBytes(x.T, start, end)
            expected = x.T.tobytes()[start:end]
            self.assertEqual(held.read(0, end - start).tobytes(), expected)
            self.assertEqual(held.read(1, end - start).tobytes(), expected[1:])


if __name__ == "__main__":
    absltest.main()
