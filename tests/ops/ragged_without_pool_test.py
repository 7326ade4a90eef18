"""jax_cxl.ragged_all_to_all where a rank exchanges nothing with other ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized
from ragged_slices import BATCH, INTO, ROWS, batched, exchange, oracle, tables

import jax_cxl


class WithoutPoolTest(parameterized.TestCase):
    """Under vmap over the axis of the exchange, and in a group of one rank."""

    @parameterized.parameters(
        (0, -1, r"rank \d: input_offsets\[1\] = -1 "),
        (0, ROWS, r"rank \d: input_offsets\[1\] = 40 and send_sizes\[1\] = 3"),
        (2, -4, r"rank \d: output_offsets\[1\] = -4 "),
        (2, INTO, r"rank \d: output_offsets\[1\] = 50 "),
        (3, 1, r"rank \d sends 3 rows .* expects 1 "),
        (1, ROWS + 1, r"rank \d: .*send_sizes\[1\] = 41 "),
    )
    def test_wrong_slices(self, column, value, message):
        for ranks in (1, harness.RANKS):
            table = np.zeros((ranks, 4, 2 * ranks), np.int32)
            table[-1, 1, 1] = table[0, 3, 2 * ranks - 1] = 3
            entry = 2 * ranks - 1 if column == 3 else 1
            table[0 if column == 3 else -1, column, entry] = value
            operand = harness.values(ROWS, ranks=ranks)
            output = harness.values(INTO, ranks=ranks)
            runs = [lambda *a: jax.vmap(lambda *b: exchange(b), axis_name="i")(*a)]
            if ranks == 1:
                runs.append(lambda *a: harness.run(exchange, a, on=harness.mesh((1,))))
                runs.append(
                    lambda *a: harness.run(batched, [v[:, None] for v in a], on=harness.mesh((1,)))
                )
            for run in runs:
                with self.assertRaisesRegex(jax_cxl.InvalidCollectiveError, message):
                    jax.block_until_ready(run(operand, output, table))
        jax_cxl.shutdown()

    @pytest.mark.long
    def test_batch_over_own_axis(self):
        rng = np.random.default_rng(3)
        operand, output = harness.values(BATCH, ROWS, 2), harness.values(BATCH, INTO, 2)
        table = np.stack([tables(rng) for _ in range(BATCH)], axis=1)
        y = jax.vmap(lambda *a: batched(a), axis_name="i")(operand, output, table)
        expected = [oracle(operand[:, b], output[:, b], table[:, b]) for b in range(BATCH)]
        harness.check_equal(np.asarray(y), np.stack(expected, axis=1))
        y = jax.vmap(jax.vmap(lambda *a: exchange(a), axis_name="i"), in_axes=1, out_axes=1)(
            operand, output, table
        )
        harness.check_equal(np.asarray(y), np.stack(expected, axis=1))

    def test_nested_batches(self):
        rng = np.random.default_rng(4)
        operand, output = harness.values(2, BATCH, ROWS, 2), harness.values(2, BATCH, INTO, 2)
        table = np.stack([tables(rng) for _ in range(2 * BATCH)], axis=1)
        table = table.reshape(harness.RANKS, 2, BATCH, *table.shape[2:])
        y = harness.run(lambda a: jax.vmap(lambda *b: batched(b))(*a), (operand, output, table))
        expected = output.copy()
        for at in np.ndindex(2, BATCH):
            expected[:, *at] = oracle(operand[:, *at], output[:, *at], table[:, *at])
        harness.check_equal(y, expected)

    @parameterized.parameters(False, True)
    def test_axes_and_groups_beside_an_axis_of_vmap(self, rows):
        def take(x):
            return jax_cxl.take_rows(x, jnp.zeros(1, int), ("i", "j"))

        def move(x, groups=None, axes="j"):
            column = jnp.zeros(8, int)
            return jax_cxl.ragged_all_to_all(
                x, x, *[column] * 4, axis_name=axes, axis_index_groups=groups
            )

        bodies = [
            take if rows else lambda x: move(x, axes=("i", "j")),
            lambda x: (
                jax_cxl.take_rows(x, jnp.zeros(1, int), "j", axis_index_groups=[[0, 1]])
                if rows
                else move(x, [[0, 1]])
            ),
        ]
        for body in bodies:
            with self.assertRaisesRegex(NotImplementedError, "axis.* of jax.vmap"):
                harness.run(jax.vmap(body, axis_name="j"), harness.values(2, 8))


if __name__ == "__main__":
    absltest.main()
