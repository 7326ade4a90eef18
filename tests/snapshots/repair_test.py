"""With parity a path may be lost; a repair makes it whole, and then another may be lost."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import places
import pytest
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._store.memory import layout, opening
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import repair, restoring


def _tree(step: int):
    rng = np.random.default_rng(step)
    mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,))
    large = jax.device_put(
        rng.standard_normal((4, 1_200_001), np.float32), jax.NamedSharding(mesh, jax.P("x"))
    )
    return {"large": large, "small": jnp.arange(3) + step, "step": step}


def _save(place, *steps, **options):
    with place.open(parity=1, **options) as snapshots:
        snapshots.latest()
        for step in steps:
            snapshots.save(step, _tree(step))
        snapshots.wait()


def _damaged(place) -> list[str]:
    """Returns what is damaged in the memory of a place."""
    opened = places.section(place)
    found = [f"superblock of device {device}" for device in opened.devices.blank]
    found += [f"superblock at {place}" for place in opening.damaged_superblocks(opened.devices)]
    for records in opened.all_valid():
        looked = [
            *repair.examine_records(opened, records),
            *repair.examine_blocks(restoring.Reader(opened, records)),
        ]
        found += [str(block) for block in looked if not block.intact]
    return found


def _without_claims(contents: list[bytes]) -> list[bytes]:
    """Returns what files hold, without the pages that each save and repair changes."""
    start, end = layout.SESSIONS_OFFSET, layout.SECTIONS_OFFSET + 2 * layout.PAGE_BYTES
    return [content[:start] + content[end:] for content in contents]


class RepairTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.trees = {step: _tree(step) for step in range(4)}

    def _assert_has(self, snapshots, *steps):
        self.assertEqual(snapshots.latest(), steps[-1])
        with self.assertNoLogs("jax_cxl"):
            for step in steps:
                places.assert_same(
                    self, self.trees[step], snapshots.restore(step, self.trees[step])
                )

    @parameterized.parameters((2, True), (2, False), (3, False), (5, True))
    @pytest.mark.sample(3)
    def test_each_path_is_lost_in_turn(self, paths, new_file):
        with places.place(self.trees[0], paths=paths, parity=1) as place:
            _save(place, 0, 1)
            whole = place.contents()
            for device in range(paths):
                place.lose(device) if new_file else place.zero(device)
                with self.assertLogs("jax_cxl", "WARNING") as logs:
                    snapshots = place.open(parity=1)
                self.assertIn(str(place.paths[device]), logs.output[0])
                with snapshots:  # Its heartbeat must not write to the next device that is lost.
                    self._assert_has(snapshots, 0, 1)
                del snapshots
                self.assertGreaterEqual(places.repair(place).written, 2 * 2)
                self.assertEqual(places.repair(place).written, 0, "it has mended all")
                self.assertEqual(_damaged(place), [])
                # Blocks that no snapshot has used need not be as before the loss, so only used
                # parts are compared.
                opened = places.section(place).devices
                for step in (0, 1):
                    for kind, of, offset, size in places.used(place, step):
                        self.assertEqual(
                            opened.read(of, offset, size).tobytes(),
                            whole[of][offset : offset + size],
                            f"{kind} of device {of} after device {device} was lost",
                        )

    def test_a_lost_path_stays_lost_until_it_is_mended(self):
        with places.place(self.trees[0], paths=3, parity=1) as place:
            _save(place, 0, 1)
            place.lose(1)
            place.open(parity=1)
            place.lose(2)
            with self.assertRaisesRegex(jax_cxl.StoreError, "only 1 may be lost"):
                place.open(parity=1)

    def test_saves_go_on_without_a_repair(self):
        with places.place(self.trees[0], paths=3, parity=1) as place:
            _save(place, 0, 1)
            place.lose(0)
            _save(place, 2)
            self._assert_has(place.open(parity=1), 1, 2)
            places.repair(place)
            place.lose(1)
            self._assert_has(place.open(parity=1), 1, 2)

    @pytest.mark.long
    def test_damaged_bytes_of_every_kind_are_mended(self):
        with places.place(self.trees[0], paths=3, parity=1) as place:
            _save(place, 0, 1)
            whole = place.contents()
            kinds = {}
            for kind, device, offset, size in places.used(place, 1):
                kinds.setdefault(kind, (device, offset + size // 2))
            self.assertLen(kinds, 6)
            for kind, (device, offset) in kinds.items():
                place.flip(device, offset)
                self.assertNotEmpty(_damaged(place), kind)
                self.assertEqual(places.repair(place), repair.Repaired(1, ()), kind)
                self.assertEqual(_without_claims(place.contents()), _without_claims(whole), kind)

    def test_data_and_the_padding_of_another_block_of_their_row_are_mended(self):
        with places.place(self.trees[0], paths=3, parity=1) as place:
            _save(place, 0, 1)
            whole = place.contents()
            parts = list(places.used(place, 1))
            data, other = next(
                (data, other)
                for data in parts
                for other in parts
                if data[0] == "data" and other[0] in ("table", "directory") and data[2] == other[2]
            )
            self.assertLess(other[3], layout.BLOCK_BYTES, "the block has padding")
            place.flip(data[1], data[2])
            place.flip(other[1], other[2] + layout.BLOCK_BYTES - 1)
            self.assertEqual(places.repair(place), repair.Repaired(2, ()))
            self.assertEqual(_without_claims(place.contents()), _without_claims(whole))

    def test_what_parity_cannot_tell_is_named_and_the_rest_mended(self):
        with places.place(self.trees[0], paths=3, parity=1) as place:
            _save(place, 0, 1)
            data = [part for part in places.used(place, 1) if part[0] == "data"]
            lost, other = data[0], data[1]
            self.assertEqual(lost[2], other[2], "they are in one row")
            place.lose(lost[1])
            place.flip(other[1], other[2])
            with self.assertLogs("jax_cxl", "WARNING") as logs:
                self.assertEqual(places.repair(place).damaged, ("version 1 of 'snapshots'",))
            self.assertIn("data of process 0", "".join(logs.output))
            # The remains of the snapshot of step 1 do not hide the previous snapshot.
            place.lose((lost[1] + 1) % 3)
            snapshots = place.open(parity=1)
            with self.assertLogs("jax_cxl", "WARNING"):
                found = snapshots.restore_latest(self.trees[0])
            places.assert_same(self, (0, self.trees[0]), found)

    def test_records_of_a_path_that_was_away_are_forgotten(self):
        with places.place(self.trees[0], paths=3, parity=1) as place:
            _save(place, 0, 1)
            old = place.paths[0].read_bytes()
            _save(place, 2, 3)
            # The path may come back with an unreadable superblock.
            for begin in (b"", b"\0" * 4):
                place.paths[0].write_bytes(begin + old[len(begin) :])
                self._assert_has(place.open(parity=1), 2, 3)
                self.assertGreater(places.repair(place).written, 0)
                self._assert_has(place.open(parity=1), 2, 3)
                self.assertEqual(places.repair(place).written, 0)
            place.lose(1)
            self._assert_has(place.open(parity=1), 2, 3)

    @parameterized.product(paths=(2, 3), device=(0, 1))
    def test_a_path_from_before_a_deletion_does_not_bring_back_the_old_versions(
        self, paths, device
    ):
        old, new = {"x": np.full(9, 1)}, {"x": np.full(9, 2)}
        with places.place(self.trees[0], paths=paths, parity=1) as place:
            with jax_cxl.Store(place.where, parity=1) as store:
                for _ in range(3):
                    store.publish("name", old)
                store.flush("name")
                before = place.paths[device].read_bytes()
                store.delete("name")
                # A save of the same number is in the same area.
                for _ in range(2):
                    store.publish("name", new)
            place.paths[device].write_bytes(before)
            del store
            for _ in range(2):
                version, tree = jax_cxl.Store(place.where).read("name")
                self.assertEqual(version, 1)
                np.testing.assert_array_equal(tree["x"], new["x"])
                self.assertEqual(places.repair(place).damaged, ())

    def test_without_parity(self):
        refused = self.assertRaisesRegex(jax_cxl.StoreError, "no parity")
        with places.place(self.trees[0]) as place, refused:
            place.open()._look(make=True)
            places.repair(place)

    def test_the_superblocks_come_last(self):
        with places.place(self.trees[0], paths=3, parity=1) as place:
            _save(place, 0, 1)
            place.lose(1)
            opened = opening.open_devices(place.where, 1, repair=True)
            opened.core = core = _Writes(opened.core)
            done = repair.repair(opened, [Section.find(opened, "snapshots")])
            self.assertEqual(done.damaged, ())
            last = [(1, at, layout.PAGE_BYTES) for at in layout.SUPERBLOCK_OFFSETS]
            self.assertEqual(core.written[-2:], last)
            self.assertNoCommonElements(last, core.written[:-2])


class LostPathTest(parameterized.TestCase):
    """A path that is lost while a job runs."""

    # For any two of the three parameters, each pair of their values occurs.
    @parameterized.parameters((2, 0, "cut"), (2, 1, "deleted"), (3, 0, "deleted"), (3, 1, "cut"))
    @pytest.mark.sample(3)
    def test_a_job_goes_on(self, paths, lost, how):
        trees = [_tree(step) for step in range(6)]
        with places.place(trees[0], paths=paths, parity=1) as place:
            snapshots = place.open(parity=1)
            for step in (0, 1):
                snapshots.save(step, trees[step])
            snapshots.wait()
            if how == "cut":
                os.truncate(place.paths[lost], 0)
            else:
                place.paths[lost].unlink()
            name = f"{place.paths[lost]} was {how}"
            with self.assertLogs("jax_cxl", "WARNING") as logs:
                for step in (2, 3):
                    snapshots.save(step, trees[step])
                    snapshots.wait()
                    places.assert_same(
                        self, (step, trees[step]), snapshots.restore_latest(trees[0])
                    )
            self.assertEqual(snapshots._publisher.section.devices.load_word(lost, 0), 0)
            self.assertLen(logs.output, 1, "said once")
            self.assertIn(name, logs.output[0])
            # A later job reports the lost path too, and creates no file in its place.
            with self.assertLogs("jax_cxl", "WARNING") as logs:
                later = place.open(parity=1)
            self.assertIn(str(place.paths[lost]), logs.output[0])
            places.assert_same(self, (3, trees[3]), later.restore_latest(trees[0]))
            self.assertEqual(place.paths[lost].exists(), how == "cut")
            del later, snapshots
            # After a repair another path may be lost.
            places.repair(place)
            _save(place, 4)
            self.assertEqual(_damaged(place), [])
            place.lose((lost + 1) % paths)
            places.assert_same(self, (4, trees[4]), place.open(parity=1).restore_latest(trees[0]))

    @parameterized.parameters(0, 1)
    def test_a_second_lost_path_is_named(self, parity):
        with places.place(_tree(0), paths=3, parity=parity) as place:
            snapshots = place.open(parity=parity)
            snapshots.save(0, _tree(0))
            snapshots.wait()
            for path in place.paths[1 : 2 + parity]:
                os.truncate(path, 0)
            with self.assertRaisesRegex(jax_cxl.StoreError, "was cut short") as caught:
                snapshots.restore(0, _tree(0))
            named = [str(path) in str(caught.exception).partition(": ")[2] for path in place.paths]
            self.assertEqual(named, [False, True, parity == 1])
            with self.assertRaises(jax_cxl.StoreError):
                snapshots.save(1, _tree(0))
                snapshots.wait()


class SuperblockTest(parameterized.TestCase):
    @parameterized.product(parity=(0, 1), page=layout.SUPERBLOCK_OFFSETS)
    @pytest.mark.sample(3)
    def test_one_copy_is_enough(self, parity, page):
        with places.place(_tree(0), paths=2, parity=parity) as place:
            snapshots = place.open(parity=parity)
            snapshots.save(0, _tree(0))
            snapshots.wait()
            for damage in ("byte", "page"):
                for device in (0, 1):
                    content = bytearray(place.contents()[device])
                    if damage == "byte":
                        content[page + 3] ^= 1
                    else:
                        content[page : page + layout.PAGE_BYTES] = b"x" * layout.PAGE_BYTES
                    place.paths[device].write_bytes(content)
                found = place.open(parity=parity).restore_latest(_tree(0))
                places.assert_same(self, (0, _tree(0)), found)
                self.assertEqual(places.repair(place).written, 2)
                self.assertEqual(_damaged(place), [])


class _Writes:
    """A mapping that remembers where data was written."""

    def __init__(self, core):
        self._core = core
        self.written = []

    def write(self, device, offset, data):
        self.written.append((device, offset, len(data)))
        self._core.write(device, offset, data)

    def __getattr__(self, name):
        return getattr(self._core, name)


if __name__ == "__main__":
    absltest.main()
