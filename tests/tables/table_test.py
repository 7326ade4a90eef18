"""Tables in a store: how they are made from arrays and iterators, opened, and refused."""

import gc
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import job
import numpy as np
from absl.testing import absltest, parameterized
from tables import StoreCase, random_rows

import jax_cxl
from jax_cxl._store.memory import catalog
from jax_cxl._table import sources


class SourcesTest(StoreCase):
    @parameterized.parameters("float32", "bfloat16", "float8_e4m3fn")
    def test_all_kinds_of_rows(self, dtype):
        rows = random_rows((1000, 7), dtype)
        np.save(self.folder / "rows.npy", rows)
        mapped = np.load(self.folder / "rows.npy", mmap_mode="r").view(rows.dtype)
        like = {"shape": rows.shape, "dtype": rows.dtype}
        for number, (given, options) in enumerate(
            [
                (rows, {}),
                (jnp.asarray(rows), like),
                (iter(np.array_split(rows, 9)), like),
                (iter([rows[:0], rows[:999], rows[999:]]), like),
                (mapped, {}),
                (np.asfortranarray(rows), {}),
            ]
        ):
            table = self.create(given, name=f"table {number}", **options)
            self.assertEqual((table.shape, table.dtype), (rows.shape, rows.dtype))
            self.assert_bits(table.read()["rows"], rows)

    def test_wrong_rows_leave_no_table(self):
        self.store._names.made()
        rows = random_rows((100, 3), "float32")
        like = {"shape": rows.shape, "dtype": rows.dtype}
        for given, options, error, message in (
            (iter([rows]), {}, ValueError, "needs shape and dtype"),
            (iter([rows[:99]]), like, ValueError, "have 99 rows, and the table has 100"),
            (iter([rows, rows[:1]]), like, ValueError, "more than 100 rows"),
            (iter([rows, rows[:0], rows[:5]]), like, ValueError, "more than 100 rows"),
            (iter([np.concatenate([rows, rows])]), like, ValueError, "more than"),
            (iter([rows[:, :2]]), like, ValueError, r"a block of rows has float32\[100, 2\]"),
            (iter([rows.astype(np.float64)]), like, ValueError, "a block of rows has float64"),
            (rows, {"shape": (100, 4)}, ValueError, r"the shape \(100, 3\), not \(100, 4\)"),
            (rows, {"dtype": "int32"}, ValueError, "the dtype float32, not int32"),
            (np.array(3.0), {}, ValueError, "a table needs rows"),
            (np.array(["a"]), {}, TypeError, "elements must be numbers"),
            (rows.astype(">f4"), {}, TypeError, "byte order"),
            (jax.random.key(0)[None], {}, TypeError, "typed PRNG keys"),
            (7, {}, TypeError, "rows=int must be"),
            ("rows.npy", {}, TypeError, "np.load"),
        ):
            with self.assertRaisesRegex(error, message):
                self.create(given, **options)
            self.assertEmpty(self.store.list(), message)
        self.create(rows)

    def test_columns_are_equal_if_they_are_the_same_rows(self):
        self.create(random_rows((8, 4), "float32"), name="a")
        self.create(random_rows((8, 4), "float32"), name="b")
        a, again, b = (
            jax_cxl.Table.open(self.store, name)._columns["rows"] for name in ("a", "a", "b")
        )
        self.assertEqual((a, hash(a)), (again, hash(again)))
        self.assertNotEqual(a, b)

    def test_rows_and_buffers_of_other_sizes_are_refused(self):
        self.create(random_rows((8, 4), "float32"))
        column = jax_cxl.Table.open(self.store, "table")._columns["rows"].native
        for out in (np.zeros(2 * 16 - 1, np.uint8), np.zeros(2 * 16 + 1, np.uint8)):
            with self.assertRaisesRegex(jax_cxl.CxlError, "2 rows .* have the wrong size"):
                column.read(np.array([0, 7]), out)
            self.assertFalse(out.any())

    def test_blocks_do_not_fill_the_memory(self):
        rows = random_rows((4096, 4096), "float32")  # 64 MiB
        np.save(self.folder / "rows.npy", rows)
        source = sources.of(np.load(self.folder / "rows.npy", mmap_mode="r"))
        blocks = [len(block) for block in source.blocks]
        self.assertEqual(blocks, [1024] * 4)


class StoreTest(StoreCase):
    def test_a_table_is_a_name_of_the_store(self):
        rows = random_rows((100, 3), "float32")
        table = self.create(rows)
        self.assertEqual([of.name for of in self.store.list()], ["table"])
        np.testing.assert_array_equal(self.store.read("table").tree["rows"], rows)
        np.testing.assert_array_equal(self.store.view("table").tree["rows"], rows)
        with self.assertRaisesRegex(jax_cxl.StoreError, "already exists: open it"):
            self.create(rows)
        with self.assertRaisesRegex(jax_cxl.StoreError, "is a table: choose another name"):
            self.store.publish("table", {"a": rows})
        self.store.publish("tree", {"rows": rows})
        self.store.flush("tree")
        with self.assertRaisesRegex(jax_cxl.StoreError, "has versions of a tree"):
            self.create(rows, name="tree")
        # Right after this process has found a name free, another process may take it, for a table
        # or for a tree. The patch makes each name look free.
        with mock.patch.object(catalog, "find", return_value=None):
            with self.assertRaisesRegex(jax_cxl.StoreError, "is a table: choose another name"):
                self.store.publish("table", {"a": rows})
            with self.assertRaisesRegex(jax_cxl.StoreError, "has versions of a tree"):
                self.create(rows, name="tree")
        with self.assertRaisesRegex(jax_cxl.StoreError, "'tree' of .* is not a table"):
            jax_cxl.Table.open(self.store, "tree")
        with self.assertRaisesRegex(jax_cxl.StoreError, "has no 'other'"):
            jax_cxl.Table.open(self.store, "other")
        with self.assertRaisesRegex(jax_cxl.StoreTimeoutError, "within 0.1 s"):
            jax_cxl.Table.open(self.store, "other", timeout=0.1)
        with self.assertRaisesRegex(ValueError, "the name of snapshots"):
            self.create(rows, name="snapshots")
        with self.assertRaisesRegex(jax_cxl.PoolError, "is full: 'large' needs"):
            self.create(np.zeros((3000, 10000), np.float32), name="large")
        table.close()

    def test_a_store_of_two_paths_is_refused(self):
        where = f"file:{self.folder}/x,{self.folder}/y?size=32MiB"
        with self.assertRaisesRegex(jax_cxl.StoreError, "has 2 devices: a table needs"):
            jax_cxl.Table.create(where, "a", np.zeros((3, 2)))

    def test_open_tables_and_programs_hold_the_memory(self):
        rows = random_rows((100, 3), "float32")
        table = self.create(rows)
        take = jax.jit(lambda ids: table.take(ids))
        other = jax_cxl.Table.open(self.where, "table")
        self.assert_bits(take(jnp.arange(9)), rows[:9])
        with self.assertRaisesRegex(jax_cxl.StoreError, "cannot be deleted: .* reads it"):
            self.store.delete("table")
        table.close()
        self.assert_bits(take(jnp.arange(9)), rows[:9], "another table of this process is open")
        other.close()
        with self.assertRaisesRegex(jax_cxl.CxlError, "has not opened the table .* or has closed"):
            jax.block_until_ready(take(jnp.arange(9)))
        with self.assertRaisesRegex(jax_cxl.StoreError, "was closed"):
            table.take([1])
        gc.collect()
        self.store.delete("table")
        self.assertEmpty(self.store.list())
        self.assert_bits(self.create(rows[:5]).take([1]), rows[1:2])

    def test_close_waits_for_takes_that_have_begun(self):
        rows = random_rows((2000, 1000), "float32")
        ids = np.tile(np.arange(2000, dtype=np.int32), 5)
        for _ in range(5):
            self.create(rows).close()
            table = jax_cxl.Table.open(self.where, "table")
            take = jax.jit(table.take)
            take(ids[:1]).block_until_ready()
            before = table.stats().rows_taken
            found = take(ids)
            while table.stats().rows_taken == before:
                pass
            table.close()
            self.assert_bits(found, rows[ids])
            del take, found
            gc.collect()
            self.store.delete("table")

    def test_damaged_rows_are_found_when_the_table_is_opened(self):
        rows = random_rows((100, 3), "float32")
        self.create(rows).close()
        gc.collect()
        path = self.folder / "a"
        data = path.read_bytes()
        at = data.index(rows[50].tobytes())
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
        with self.assertRaisesRegex(jax_cxl.StoreError, "block 0 .* is damaged"):
            jax_cxl.Table.open(self.store, "table")

    def test_a_creator_that_ends_in_the_middle_leaves_its_place_to_the_next(self):
        program = (
            "import os, sys, numpy as np, jax_cxl\n"
            "def blocks():\n"
            "  yield np.zeros((1000, 700), np.float32)\n"
            "  os._exit(7)\n"
            "jax_cxl.Table.create(sys.argv[1], 'table', blocks(), shape=(2000, 700),"
            " dtype=np.float32)\n"
        )
        command = [sys.executable, "-c", program, self.where]
        done = subprocess.run(command, check=False, env=job.quick_environment())
        self.assertEqual(done.returncode, 7)
        with self.assertRaisesRegex(jax_cxl.StoreError, "no version"):
            jax_cxl.Table.open(self.store, "table")
        rows = random_rows((100, 3), "float32")
        self.assert_bits(self.create(rows).take([99]), rows[99:])

    def test_masks_are_refused(self):
        rows = random_rows((100, 3), "float32")
        masked = np.ma.array(rows, mask=rows > 0)
        like = {"shape": rows.shape, "dtype": rows.dtype}
        for source, options in ((masked, {}), (iter([masked]), like)):
            with self.assertRaisesRegex(TypeError, "cannot have masks"):
                self.create(source, **options)
        table = self.create(rows, trained=True)
        ids = np.ma.array([1, 2], mask=[True, False])
        with self.assertRaisesRegex(TypeError, "cannot have masks"):
            table.read(ids)
        with self.assertRaisesRegex(TypeError, "cannot have masks"):
            table.add(ids, rows[:2])
        with self.assertRaisesRegex(TypeError, "cannot have masks"):
            table.add([1, 2], masked[:2])

    @parameterized.parameters(((100.0, 3),), ("100",), (np.array([100.0, 3.0]),))
    def test_shapes_have_whole_numbers(self, shape):
        rows = random_rows((100, 3), "float32")
        with self.assertRaisesRegex(TypeError, "cannot be interpreted as an integer"):
            self.create(iter([rows]), shape=shape, dtype=rows.dtype)
        self.assert_bits(
            self.create(iter([rows]), shape=np.array([100, 3]), dtype=rows.dtype).take([99]),
            rows[99:],
        )

    def test_a_table_that_is_being_made_is_refused(self):
        rows = random_rows((100, 3), "float32")

        def blocks():
            with self.assertRaisesRegex(jax_cxl.StoreError, "no version"):
                jax_cxl.Table.open(self.store, "table")
            with self.assertRaisesRegex(jax_cxl.StoreError, "cannot be deleted|is being created"):
                self.create(rows)
            yield rows

        table = self.create(blocks(), shape=rows.shape, dtype=rows.dtype)
        self.assert_bits(table.take([99]), rows[99:])


if __name__ == "__main__":
    absltest.main()
