"""jax_cxl.ragged_all_to_all against NumPy."""

import importlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized
from jax.interpreters import ad
from ragged_slices import INTO, ROWS, exchange, oracle, routed, tables

import jax_cxl
from jax_cxl.ops import public as ops


class RaggedAllToAllTest(parameterized.TestCase):
    @parameterized.product(
        dtype=(bool, np.int8, ml_dtypes.bfloat16, np.float32, np.complex64, ml_dtypes.int4),
        slices=(1, 3),
        check_vma=(False, True),
    )
    @pytest.mark.sample(5)
    def test_values(self, dtype, slices, check_vma):
        rng = np.random.default_rng(slices)
        operand = harness.values(ROWS, 3, dtype=np.int8).astype(dtype)
        output = harness.values(INTO, 3, dtype=np.int8).astype(dtype)
        for _ in range(3):
            table = tables(rng, slices=slices)
            y = harness.run(exchange, (operand, output, table), check_vma=check_vma)
            harness.check_equal(y, oracle(operand, output, table))

    def test_the_derivative_of_a_result_that_is_not_used(self):
        shapes = [jax.core.ShapedArray((rows, 2), np.float32) for rows in (3, 5)]
        module = importlib.import_module("jax_cxl.ops.ragged_all_to_all")
        cases = ((True, True), (True, False), (False, True))
        for wanted in cases:
            arguments = [
                ad.UndefinedPrimal(shape) if each else np.zeros(shape.shape, shape.dtype)
                for shape, each in zip(shapes, wanted, strict=True)
            ]
            found = module._transpose(
                *(ad.Zero(shapes[1]), *arguments, np.zeros((4, 1), np.int32)),
                axes=("i",),
                groups=None,
                size=1,
                elements=1,
            )
            expected = [*zip(wanted, shapes, strict=True), (False, None)]
            for zero, (each, shape) in zip(found, expected, strict=True):
                self.assertEqual(zero and zero.aval, shape if each else None)

    def test_many_chunks(self):
        rng = np.random.default_rng(0)
        rows = 20_000
        operand = rng.standard_normal((harness.RANKS, rows, 130)).astype(np.float32)
        output = np.zeros((harness.RANKS, rows + 5, 130), np.float32)
        table = tables(rng, rows=rows, into=rows + 5)
        y = harness.run(exchange, (operand, output, table))
        harness.check_equal(y, oracle(operand, output, table))

    @parameterized.product(
        kind=("random", "all to one", "empty ranks", "nothing", "one row"),
        # The smallest exchange fits into a submission; the largest takes many rounds.
        size=((5, 8), (200, 40), (3000, 700)),
    )
    @pytest.mark.sample(4)
    def test_routed_tokens(self, kind, size):
        rows, width = size
        rng = np.random.default_rng(rows)
        operand = rng.integers(0, 256, (harness.RANKS, rows, width), np.uint8)
        output = rng.integers(0, 256, (harness.RANKS, harness.RANKS * rows, width), np.uint8)
        run = harness.program(exchange, check_vma=True)
        for slices in (1, 4):
            for _ in range(3 if rows < 3000 else 1):
                table = routed(rng, kind, slices, rows)
                y = np.asarray(run((operand, output, table)))
                harness.check_equal(y, oracle(operand, output, table))

    def test_long_tables(self):
        rng = np.random.default_rng(7)
        operand, output = harness.values(6000, 3), harness.values(6000, 3)
        table = tables(rng, slices=1000, rows=6000, into=6000)
        y = harness.run(exchange, (operand, output, table))
        harness.check_equal(y, oracle(operand, output, table))

    def test_a_row_goes_to_several_ranks(self):
        operand, output = harness.values(ROWS, 3), harness.values(INTO, 3)
        n = harness.RANKS
        table = np.zeros((n, 4, n), np.int32)
        table[:, 0], table[:, 1], table[:, 3] = 7, 5, 5
        table[:, 2] = 5 * np.arange(n)[:, None]
        y = harness.run(exchange, (operand, output, table))
        harness.check_equal(y, oracle(operand, output, table))

    def test_only_what_is_sent_goes_through_the_pool(self):
        operand = np.ones((harness.RANKS, ROWS, 1000), np.float32)
        table = np.zeros((harness.RANKS, 4, harness.RANKS), np.int32)
        table[0, 1, 2] = table[2, 3, 0] = 5  # Rank 0 sends five rows to rank 2.
        run = harness.program(exchange, check_vma=True)
        jax.block_until_ready(run((operand, operand, table)))
        before = jax_cxl.stats()
        jax.block_until_ready(run((operand, operand, table)))
        published = jax_cxl.stats().bytes_published - before.bytes_published
        self.assertEqual(published, 5 * 4000 + table.size * 8)

    def test_lax_example(self):
        table = np.array([[[0, 1], [1, 2], [0, 0], [1, 1]], [[0, 1], [1, 1], [1, 2], [2, 1]]])
        y = harness.run(
            exchange,
            (np.array([[1, 2, 2], [3, 4, 0]]), np.zeros((2, 4), int), table),
            on=harness.mesh((2,)),
        )
        np.testing.assert_array_equal(y, [[1, 3, 0, 0], [2, 2, 4, 0]])

    def test_groups(self):
        rng = np.random.default_rng(1)
        operand, output = harness.values(ROWS), harness.values(INTO)
        table = np.stack([tables(rng, ranks=2) for _ in range(2)])
        spread = np.empty((4, *table.shape[2:]), np.int32)
        expected = output.copy()
        for part, group in zip(table, harness.GROUPS, strict=True):
            spread[group] = part
            expected[group] = oracle(operand[group], output[group], part)
        y = harness.run(
            lambda a: exchange(a, axis_index_groups=harness.GROUPS), (operand, output, spread)
        )
        harness.check_equal(y, expected)

    @parameterized.parameters(False, True)
    def test_derivatives(self, check_vma):
        table = tables(np.random.default_rng(2))
        operand, output = harness.values(ROWS, 2), harness.values(INTO, 2)
        y = oracle(operand, output, table)

        def tangent(a):
            operand, output, table = a
            return jax.jvp(
                lambda u, v: exchange((u, v, table)), (operand, output), (2 * operand, 3 * output)
            )[1]

        arguments = (operand, output, table)
        harness.check_equal(
            harness.run(tangent, arguments, check_vma=check_vma),
            oracle(2 * operand, 3 * output, table),
        )

        def gradient(a):
            operand, output, table = a
            return jax.grad(lambda u, v: jnp.sum(exchange((u, v, table)) ** 2) / 2, argnums=(0, 1))(
                operand, output
            )

        def constant(a):
            return jax.jvp(lambda u: u * exchange(jax.lax.stop_gradient(a)).sum(), (2.0,), (1.0,))

        total = y.sum(1).sum(1)
        value, slope = harness.run(constant, arguments, check_vma=check_vma)
        np.testing.assert_array_equal(value, 2 * total)
        np.testing.assert_array_equal(slope, total)

        # In the expected gradients, the rows of the result go back to where they came from.
        reach = oracle(np.ones_like(operand), np.zeros_like(output), table)
        expected = np.zeros_like(operand)
        for sender in range(len(operand)):
            for first, size, _, _ in table[sender].T:
                expected[sender, first : first + size] = operand[sender, first : first + size]
        for transformed in (gradient, jax.checkpoint(gradient)):
            to_operand, to_output = harness.run(transformed, arguments, check_vma=check_vma)
            harness.check_equal(to_operand, expected)
            harness.check_equal(to_output, np.where(reach > 0, 0, y).astype(np.float32))

    @parameterized.parameters(False, True)
    def test_batching(self, check_vma):
        rng = np.random.default_rng(3)
        operand, output = harness.values(3, ROWS), harness.values(INTO, 3)
        table = np.stack([tables(rng) for _ in range(3)], axis=1)
        expected = np.stack(
            [oracle(operand[:, b], output[..., b], table[:, b]) for b in range(3)], axis=1
        )

        def batched(a):
            return jax.vmap(lambda *b: exchange(b), in_axes=(0, 1, 0))(*a)

        y = harness.run(batched, (operand, output, table), check_vma=check_vma)
        harness.check_equal(y, expected)

        # Only the table is batched.
        y = harness.run(
            lambda a: jax.vmap(lambda t: exchange((a[0], a[1], t)))(a[2]),
            (operand[:, 0], output[..., 0], table),
            check_vma=check_vma,
        )
        expected = [oracle(operand[:, 0], output[..., 0], table[:, b]) for b in range(3)]
        harness.check_equal(y, np.stack(expected, axis=1))

    def test_own_axis_of_vmap_and_one_rank(self):
        operand, output = harness.values(ROWS, 2), harness.values(INTO, 2)
        table = tables(np.random.default_rng(4))
        y = jax.vmap(lambda *a: exchange(a), axis_name="i")(operand, output, table)
        harness.check_equal(np.asarray(y), oracle(operand, output, table))
        arguments = (operand[:1], output[:1], tables(np.random.default_rng(5), ranks=1))
        y = harness.run(exchange, arguments, on=harness.mesh((1,)))
        harness.check_equal(y, oracle(*arguments))

    @parameterized.parameters(
        (
            ValueError,
            "the same dimensions after the first",
            (4, 2),
            (5, 3),
            (4,),
            np.float32,
            np.int32,
        ),
        (ValueError, "one length", (4, 2), (5, 2), (1, 4), np.float32, np.int32),
        (ValueError, "divisible by the size 4", (4, 2), (5, 2), (6,), np.float32, np.int32),
        (TypeError, "Convert one", (4, 2), (5, 2), (4,), np.int8, np.int32),
        (TypeError, "must be integers", (4, 2), (5, 2), (4,), np.float32, np.float32),
    )
    def test_wrong_arguments(self, error, message, rows, into, sizes, dtype, kind):
        def body(v):
            columns = [jnp.zeros(sizes, kind)] * 4
            operand = jnp.zeros(rows, np.float32) + v[0]
            return ops.ragged_all_to_all(operand, jnp.zeros(into, dtype), *columns, axis_name="i")

        with self.assertRaisesRegex(error, message):
            harness.run(body, harness.values(1))


if __name__ == "__main__":
    absltest.main()
