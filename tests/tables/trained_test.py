"""Tables whose rows change: steps against a dense reference, readers meanwhile, and ended jobs."""

import subprocess
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import job
import ml_dtypes
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from tables import StoreCase, dtype_of, random_rows

import jax_cxl
from jax_cxl._store.memory import layout
from jax_cxl._table.trained import merging, region

_ROWS = 500
_KINDS = (
    *("bool", "int4", "uint4", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"),
    *("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float16", "bfloat16"),
    *("float32", "float64", "complex64", "complex128"),
)


def _floats(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.dtype(dtype))


def _numbers(x, dtype):
    """Returns numbers of a dtype. Integers wrap around."""
    kind = dtype_of(dtype)
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        x = x.astype(np.int64) if jnp.issubdtype(kind, np.integer) else x
        return x.astype(kind)


class StepsTest(StoreCase):
    @parameterized.parameters(
        ("float32", "float32"),
        ("bfloat16", "float32"),
        ("bfloat16", "bfloat16"),
        ("float32", "float16"),
        ("int32", "int32"),
    )
    def test_add_is_that_of_a_dense_array(self, dtype, of_updates):
        kind, wide = np.dtype(getattr(jnp, dtype)), np.dtype(getattr(jnp, of_updates))
        rows = (_floats((_ROWS, 7)) * 9).astype(kind)
        table = self.create(rows, trained=True)
        expected = jnp.asarray(rows)
        take = jax.jit(table.take)
        for step in range(1, 4):
            # Many duplicates, ids from the end, and ids outside of the table.
            ids = np.random.default_rng(step).integers(-_ROWS - 20, _ROWS + 20, (40, 30))
            ids[:20] = ids[0, :3].repeat(10)
            updates = (_floats((40, 30, 7), seed=step) * 5).astype(wide)
            self.assertEqual(table.add(ids, updates), step)
            summed = jnp.promote_types(wide, np.float32) if dtype != "int32" else kind
            sums = jnp.zeros(rows.shape, summed).at[ids].add(updates.astype(summed))
            both = jnp.promote_types(kind, summed)
            expected = (expected.astype(both) + sums.astype(both)).astype(kind)
            self.assert_bits(take(np.arange(_ROWS)), expected, f"step {step}")
            self.assert_bits(table.read()["rows"], expected, f"step {step}")
        self.assertEqual(table.step, 3)
        self.assert_bits(
            jax_cxl.Table.open(self.store, "table").read([3, 3])["rows"],
            np.asarray(expected)[[3, 3]],
        )

    @pytest.mark.sample(2)
    @parameterized.parameters(*_KINDS)
    def test_all_pairs_of_dtypes(self, dtype):
        kind = dtype_of(dtype)
        rows = _numbers([[100, 3], [-7, 0], [1, 0.5]], dtype)
        ids = np.array([0, 1, 0, 0, 2, 0, 1])
        numbers = [100, -3.6, 100, 1e9, 1.6, 1, 1.6]

        updates = {
            name: _numbers(np.stack([numbers, numbers[::-1]], 1), name) for name in _KINDS[1:]
        }

        def widened(x):
            bits = jnp.finfo(x.dtype).bits if "float" in str(x.dtype) else 0
            if 0 < bits < 32:
                return x.astype(jnp.float32)
            return x.astype(jnp.int8) if "int4" in str(x.dtype) else x

        @jax.jit
        def dense(rows, updates):
            wide = widened(rows)
            return [
                (wide + jnp.zeros_like(wide).at[ids].add(widened(x))).astype(kind) for x in updates
            ]

        with jax.enable_x64(True), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX and NumPy warn of casts to narrower kinds.
            expected = dense(rows, list(updates.values()))
            for (name, x), want in zip(updates.items(), expected, strict=True):
                with self.create(rows, name=name, trained=True) as table:
                    table.add(ids, x)
                    found = table.read()["rows"]
                self.store.delete(name)
                # Through complex128, because NumPy does not know the NaN of ml_dtypes.
                found, want = (np.asarray(x).astype(np.complex128) for x in (found, want))
                np.testing.assert_array_equal(found, want, f"updates of {name}")

    def test_gradients_of_take_train_the_table(self):
        rows = _floats((_ROWS, 6))
        table = self.create(rows, trained=True)
        dense = jnp.asarray(rows)

        def loss(taken, weights):
            return jnp.sum(jnp.tanh(taken @ weights))

        def of_table(delta, weights, ids):
            return loss(table.take(ids, delta=delta), weights)

        def of_dense(dense, weights, ids):
            return loss(jnp.take(dense, ids, axis=0), weights)

        weights = _floats((6, 3), seed=9)
        for step in range(3):
            ids = np.random.default_rng(step).integers(0, 50, (8, 16))
            gradients = jax.jit(jax.grad(of_table))(jnp.zeros((8, 16, 6)), weights, ids)
            table.add(ids, -0.5 * gradients)
            dense = dense + -0.5 * jax.jit(jax.grad(of_dense))(dense, weights, ids)
            self.assert_bits(table.take(np.arange(_ROWS)), dense)

    def test_update_with_state(self):
        rows = _floats((_ROWS, 4))
        state = {
            "m": jax.ShapeDtypeStruct((_ROWS, 4), jnp.float32),
            "count": np.zeros(_ROWS, np.int32),
        }
        table = self.create(rows, trained=True, state=state)

        def rule(rows, gradients, state):
            m = jnp.float32(0.5) * state["m"] + gradients
            return rows - m, {"m": m, "count": state["count"] + 1}

        expected = {
            "rows": rows.copy(),
            "m": np.zeros((_ROWS, 4), np.float32),
            "count": state["count"],
        }
        for step in range(3):
            ids = np.random.default_rng(step).integers(0, _ROWS, 90)
            gradients = _floats((90, 4), seed=step)
            table.update(ids, gradients, rule)
            hit, sums = merging.merge(ids, gradients, rows.dtype)
            m = np.float32(0.5) * expected["m"][hit] + sums
            expected["rows"][hit] -= m
            expected["m"][hit] = m
            expected["count"][hit] += 1
        for name, found in table.read().items():
            self.assert_bits(found, expected[name], name)

    def test_sums_are_in_the_order_of_a_scatter(self):
        # One id has many more updates than the others.
        for seed, counts in enumerate(((1, 2, 3), (1, 300, 2, 65), (64, 64))):
            ids = np.repeat(np.arange(len(counts)) * 3, counts)
            ids = np.random.default_rng(seed).permutation(ids)
            updates = _floats((len(ids), 5), seed=seed) * 1e3
            found, sums = merging.merge(ids, updates, np.float32)
            np.testing.assert_array_equal(found, np.unique(ids))
            dense = np.zeros((ids.max() + 1, 5), np.float32)
            for row, update in zip(ids, updates, strict=True):
                dense[row] += update
            self.assert_bits(sums, dense[found])
        none = merging.merge(
            np.empty(0, np.int64), np.empty((0, 2), ml_dtypes.bfloat16), np.float32
        )
        self.assertEqual([x.shape for x in none], [(0,), (0, 2)])

    def test_complex_numbers_lose_their_imaginary_part_only_if_they_must(self):
        x = np.array([1 + 2j, 3j], np.complex64)
        for dtype, expected in (
            ("complex64", [1 + 2j, 3j]),
            ("complex128", [1 + 2j, 3j]),
            ("float32", [1, 0]),
            ("bool", [True, True]),
        ):
            self.assert_bits(merging.converted(x, np.dtype(dtype)), np.array(expected, dtype))

    def test_the_rule_gets_sums_in_a_wide_dtype(self):
        for dtype, of_gradients, expected in (
            ("bfloat16", "bfloat16", "float32"),
            ("float32", "int8", "float32"),
            ("int32", "int8", "int32"),
            ("float8_e5m2", "float32", "float32"),
        ):
            rows = np.zeros((4, 1), dtype_of(dtype))
            seen = []

            def rule(rows, gradients, state, seen=seen):
                seen.append(gradients.dtype)
                return gradients.astype(rows.dtype), state

            table = self.create(rows, name=f"{dtype}.{of_gradients}", trained=True)
            table.update([2, 2, 2], np.full((3, 1), 100, dtype_of(of_gradients)), rule)
            self.assertEqual(seen, [expected])
            one = np.asarray(100, dtype_of(of_gradients)).astype(np.float32)
            self.assert_bits(table.read([2])["rows"][0, 0], (3 * one).astype(rows.dtype))

    def test_the_rule_gets_a_power_of_two_of_rows(self):
        table = self.create(np.ones((8, 1), np.int32), trained=True)
        for count, padded in ((1, 1), (2, 2), (3, 4), (4, 4), (5, 8)):
            seen = []

            def rule(rows, gradients, state, seen=seen):
                seen.append((rows.shape, gradients.shape))
                return rows * gradients, state

            table.update(np.arange(count), np.ones((count, 1), np.int32), rule)
            self.assertEqual(seen, [((padded, 1), (padded, 1))])
        self.assert_bits(table.read()["rows"], np.ones((8, 1), np.int32))

    def test_updates_are_what_they_are_in_jax(self):
        updates = np.array([[1 + 2.0**-30], [-1]])  # float64, and 0 in float32
        table = self.create(np.zeros((2, 1), np.float32), trained=True)
        table.add([1, 1], updates)
        rows = jnp.zeros((2, 1))
        self.assert_bits(table.read()["rows"], rows.at[np.array([1, 1])].add(updates))

    def test_ids_of_all_dtypes(self):
        table = self.create(np.zeros((8, 1), np.int32), trained=True)
        for number, dtype in enumerate(_KINDS[1:10], 1):
            ids = np.array([1, 7, 1]).astype(dtype_of(dtype))
            table.add(ids, np.ones((3, 1), np.int32))
            found = table.read(ids)["rows"][:, 0]
            np.testing.assert_array_equal(found, [2 * number, number, 2 * number], dtype)

    def test_a_reader_never_gets_a_part_of_a_step(self):
        rows = np.zeros((40, 5000), np.int32)
        table = self.create(rows, trained=True)
        take = jax.jit(table.take)
        ids = np.arange(40).repeat(3)
        stop = threading.Event()
        torn, seen = [], set()

        def read():
            while not stop.is_set():
                found = np.asarray(take(ids))
                torn.extend(row for row in found if (row != row[0]).any())
                seen.update(found[:, 0].tolist())

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        ones = np.ones((40, 5000), np.int32)
        step = 0
        try:
            # On a busy machine the readers may need more than 60 steps to see several of them.
            while step < 60 or (len(seen) < 3 and step < 2000):
                step = table.add(np.arange(40), ones)
        finally:
            stop.set()
            for reader in readers:
                reader.join()
        self.assertEmpty(torn)
        self.assertGreater(len(seen), 2)
        self.assert_bits(take(ids[:1])[0], np.full(5000, step, np.int32))


class PlanTest(absltest.TestCase):
    def test_new_rows_of_owners_do_not_share_cache_lines(self):
        columns = tuple(
            region.Described(name, np.dtype(dtype), shape)
            for name, dtype, shape in (("rows", "f4", (3,)), ("m", "i1", ()))
        )
        counts = np.random.default_rng(0).integers(0, 9, layout.MAX_PROCESSES)
        plan = region.Plan(10**6, columns, int(counts.sum()))
        end = plan.ids + 8 * plan.step_rows
        for number, column in enumerate(columns):
            first = 0
            for owner, count in enumerate(counts.tolist()):
                start = plan.new(number, first, owner)
                self.assertGreaterEqual(start // 64, -(-end // 64), (number, owner))
                first += count
                end = start + count * column.row_bytes
        self.assertLessEqual(end, plan.bytes)

    def test_descriptions_that_cannot_be_read(self):
        good = '[8, [["rows", "float32", [3]]], 4]'
        self.assertEqual(region.Plan.from_text(good).rows, 8)
        for text in ("", "7", "[8, [], 4]", good.replace("8", "-1"), good.replace("4]", "0]")):
            with self.assertRaises(ValueError):
                region.Plan.from_text(text)

    def test_an_entry_is_a_cache_line(self):
        entry = region.Entry(7, 5, 3, 1 << 63)
        data = entry.to_bytes()
        self.assertLen(data, 64)
        self.assertEqual(data[:8], (7).to_bytes(8, "little"))
        self.assertEqual(region.Entry.from_bytes(data), entry)
        self.assertIsNone(region.Entry.from_bytes(data[:30] + b"x" + data[31:]))


class RefusedTest(StoreCase):
    def test_wrong_arguments_change_nothing(self):
        rows = _floats((_ROWS, 4))
        table = self.create(rows, trained=True, step_rows=5, state={"m": np.zeros(_ROWS, np.int8)})
        for ids, updates, error, message in (
            ([1], np.zeros((1, 3)), ValueError, r"updates must have the shape \(1, 4\)"),
            ([1.5], np.zeros((1, 4)), TypeError, "ids must be integers, got float64"),
            ([1], np.zeros((1, 4), bool), TypeError, "updates must be numbers"),
            (
                np.arange(6),
                np.ones((6, 4), np.float32),
                ValueError,
                "6 different rows, .*step_rows=5",
            ),
        ):
            with self.assertRaisesRegex(error, message):
                table.add(ids, updates)
        one = np.ones((1, 4), np.float32)
        for rule, message in (
            (lambda rows, gradients, state: (rows, {}), r"a dict with the keys \['m'\]"),
            (lambda rows, gradients, state: (rows[:, :2], state), "must return rows as float32"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                table.update([1], one, rule)
        self.assert_bits(table.read()["rows"], rows)
        self.assertEqual(table.step, 0)
        self.assertEqual(table.add([1], one), 1, "the table still works")
        with self.assertRaisesRegex(jax_cxl.StoreTimeoutError, "reached step 1, but not step 2"):
            table.wait(2, timeout=0)
        self.assertEqual(table.wait(1), 1)
        with self.assertRaisesRegex(jax_cxl.StoreError, "cannot change: .* trained=True"):
            self.create(rows, name="constant").add([1], one)

    def test_one_job_changes_a_table_at_a_time(self):
        first = self.create(np.zeros((8, 1), np.int32), trained=True)
        second = jax_cxl.Table.open(self.where, "table")
        for number, table in enumerate((first, second, first), 1):
            other = second if table is first else first
            self.assertEqual(table.add([2], [[1]]), number)
            with self.assertRaisesRegex(jax_cxl.StoreError, "already writes to 'table'"):
                other.add([2], [[1]])
            table._end_steps()
        second.add([2], [[1]])
        second.close()
        first.add([2], [[1]])
        self.assert_bits(first.read([2])["rows"], np.full((1, 1), 5, np.int32))

    def test_steps_of_one_row(self):
        table = self.create(np.zeros((8, 1), np.int32), trained=True, step_rows=1)
        self.assertEqual(table.add([2, 2], [[1], [1]]), 1)
        with self.assertRaisesRegex(ValueError, "2 different rows, .*step_rows=1"):
            table.add([2, 3], [[1], [1]])
        self.assert_bits(table.read([2, 3])["rows"], np.array([[2], [0]], np.int32))

    def test_arguments_of_create(self):
        self.store._names.made()
        rows = random_rows((8, 2), "float32")
        for options, message in (
            ({"state": {}}, "pass trained=True"),
            ({"trained": True, "state": {"rows": rows}}, "identifier other than 'rows'"),
            ({"trained": True, "state": {"m": rows[:3]}}, "m has 3 rows, and the table 8"),
            ({"trained": True, "step_rows": 0}, "step_rows=0 must be at least 1"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.create(rows, **options)
        self.assertEmpty(self.store.list())


_ENDING = """
import os, sys, numpy as np, jax_cxl
from jax_cxl._table.trained import steps
where, move = sys.argv[1:]
ones = np.ones((30, 3), np.float32)
table = jax_cxl.Table.open(where, move)
table.add(np.arange(30), ones)
old = getattr(steps.Steps, move)
def end(self, *arguments):
    if move == "_apply":
        # In the middle of the rows.
        self._region.begin(np.arange(30), 2)
        self._columns[0].write(np.arange(9), (ones[:9] * 77).view(np.uint8).ravel())
    os._exit(7)
setattr(steps.Steps, move, end)
table.add(np.arange(30), ones)
"""


class EndedJobTest(StoreCase):
    def test_the_next_job_has_all_or_nothing_of_a_step(self):
        rows = _floats((30, 3))
        jobs = {}
        for move in ("_commit", "_apply"):
            self.create(rows, trained=True, name=move).close()
            command = [sys.executable, "-c", _ENDING, self.where, move]
            jobs[move] = subprocess.Popen(
                command, stderr=subprocess.PIPE, text=True, env=job.quick_environment()
            )
        for (move, ending), completed in zip(jobs.items(), (0, 1), strict=True):
            errors = ending.communicate()[1]
            self.assertEqual(ending.returncode, 7, errors)
            table = jax_cxl.Table.open(self.store, move)
            self.assertEqual(table.step, 1)
            none = table.add(np.empty(0, int), np.empty((0, 3), np.float32))
            self.assertEqual(none, 2 + completed)
            expected = rows + np.float32(1)
            expected = expected + np.float32(1) if completed else expected
            self.assert_bits(table.take(np.arange(30)), expected)


if __name__ == "__main__":
    absltest.main()
