"""Steps that several processes take together, with threads in their place."""

from unittest import mock

import jax
import numpy as np
import threads
from absl.testing import absltest
from tables import StoreCase

import jax_cxl
from jax_cxl._table.trained import steps

_COUNT = 3
_ROWS = 400  # several parts, so that each process owns rows


def _momentum(rows, gradients, state):
    m = np.float32(0.5) * state["m"] + gradients
    return rows - m, {"m": m}


class SeveralProcessesTest(StoreCase):
    def setUp(self):
        super().setUp()
        self.processes = threads.Processes(_COUNT)
        self.enterContext(self.processes.running())
        self.rows = np.random.default_rng(0).standard_normal((_ROWS, 5)).astype(np.float32)
        state = {"m": jax.ShapeDtypeStruct(self.rows.shape, np.float32)}
        self.create(self.rows, trained=True, state=state).close()

    def run_all(self, call):
        """Opens the table in each process, and returns what `call` returns or raises there."""

        def one(own):
            with jax_cxl.Table.open(self.where, "table") as table:
                return call(own, table)

        return self.processes.run(one)

    def updates(self, own, step):
        """Returns ids and updates of a process. The last process has none."""
        rng = np.random.default_rng([own, step])
        count = (70, 90, 0)[own]
        ids = rng.integers(-_ROWS - 9, _ROWS + 9, count)
        ids[:20] = 7  # All processes change this row.
        return ids, (1e3 * rng.standard_normal((count, 5))).astype(np.float32)

    def expected(self, step):
        """Returns the sums of the updates, added in the order of the processes."""
        sums = np.zeros_like(self.rows)
        for own in range(_COUNT):
            for row, update in zip(*self.updates(own, step), strict=True):
                if -_ROWS <= row < _ROWS:
                    sums[row] += update
        return sums

    def test_add(self):
        def call(own, table):
            return [table.add(*self.updates(own, step)) for step in range(2)], table.read()["rows"]

        expected = self.rows + self.expected(0)
        expected = expected + self.expected(1)
        for numbers, rows in self.run_all(call):
            self.assertEqual(numbers, [1, 2])
            self.assert_bits(rows, expected)

    def test_update(self):
        def call(own, table):
            numbers = [table.update(*self.updates(own, step), _momentum) for step in range(2)]
            return numbers, table.read()

        rows, m = self.rows.copy(), np.zeros_like(self.rows)
        for step in range(2):
            sums = self.expected(step)
            hit = sums.any(axis=1)
            m[hit] = np.float32(0.5) * m[hit] + sums[hit]
            rows[hit] -= m[hit]
        for numbers, found in self.run_all(call):
            self.assertEqual(numbers, [1, 2])
            self.assert_bits(found["rows"], rows)
            self.assert_bits(found["m"], m)

    def test_updates_of_different_dtypes(self):
        def call(own, table):
            ids, updates = self.updates(own, 0)
            return table.add(ids, updates.astype("f2") if own == 1 else updates)

        for found in self.run_all(call):
            self.assertIsInstance(found, jax_cxl.MismatchError)
            self.assertRegex(
                str(found),
                "processes 0 and 1 change a table with different dtypes: process 0 has updates of"
                " float32, and process 1 has updates of float16",
            )
            self.assertEqual(found.ranks, (0, 1))

    def test_an_error_of_one_process(self):
        def call(own, table):
            ids, updates = self.updates(own, 0)
            try:
                return table.add(ids, updates[:, :3] if own == 1 else updates)
            finally:
                self.assertEqual(table.step, 0)
                self.assertEqual(table.add(ids, updates), 1)

        first, second, last = self.run_all(call)
        self.assertRegex(str(second), r"updates must have the shape \(90, 5\)")
        for found in (first, last):
            self.assertIsInstance(found, jax_cxl.StoreError)
            self.assertRegex(str(found), "process 1 could not change the table: ValueError: upd")

    def test_one_process_completes_a_step_of_several(self):
        def call(own, table):
            with self.assertRaises(MemoryError):
                table.add(*self.updates(own, 0))

        fail = mock.Mock(side_effect=MemoryError)
        with mock.patch.object(steps.Steps, "_apply", fail):
            self.run_all(call)
        self.assertEqual(fail.call_count, _COUNT)
        table = jax_cxl.Table.open(self.where, "table")
        self.assert_bits(table.read()["rows"], self.rows)
        self.assertEqual(table.add(np.empty(0, int), np.empty((0, 5), np.float32)), 2)
        self.assert_bits(table.read()["rows"], self.rows + self.expected(0))


if __name__ == "__main__":
    absltest.main()
