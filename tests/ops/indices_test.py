"""Indices of every integer dtype, in every range, against NumPy; and ids of experts."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized

from jax_cxl._lowering.primitives import indices as index_arrays
from jax_cxl.ops import public as ops

N = harness.RANKS
NARROW = (ml_dtypes.int2, ml_dtypes.uint2, ml_dtypes.int4, ml_dtypes.uint4, np.int8, np.uint8)
WIDE = (np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
# Numbers of rows of a rank. The table of all ranks has N times as many rows: fewer than a narrow
# dtype has values, as many, or more.
ROWS = (1, 3, 4, 32, 64, 75)


def extremes(dtype: Any, bound: int) -> np.ndarray:
    """Returns numbers of a dtype at the ends of its range, around 0 and around +-`bound`."""
    info = ml_dtypes.iinfo(dtype)
    near = (-(bound + 1), -bound, -2, -1, 0, 1, 2, bound - 1, bound, bound + 1)
    # A conversion that kept only the low bits of these numbers would turn them into numbers of
    # existing rows.
    wrapped = [k * 2**bits + d for bits in (8, 16, 32, 40, 63) for k in (-1, 1) for d in (-1, 0, 1)]
    ends = (int(info.min), int(info.min) + 1, int(info.max) - 1, int(info.max))
    numbers = [n for n in (*near, *wrapped, *ends) if info.min <= n <= info.max]
    return np.array(numbers, object).astype(dtype)


def take(whole: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the rows of a table, zeros for numbers that name no row."""
    rows = [int(n) for n in numbers]
    zero = np.zeros_like(whole[0])
    return np.stack([whole[n] if 0 <= n < len(whole) else zero for n in rows])


def x64(dtype: Any) -> Any:
    wide = np.dtype(dtype).itemsize == 8
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


class IndicesTest(parameterized.TestCase):
    @parameterized.product(dtype=NARROW + WIDE, rows=ROWS)
    def test_below(self, dtype, rows):
        numbers = extremes(dtype, rows)
        expected = [n if 0 <= n < rows else -1 for n in map(int, numbers)]
        with x64(dtype):
            for x in (numbers, jnp.asarray(numbers)):
                self.assertEqual(x.dtype, dtype)
                y = index_arrays.below(x, rows)
                harness.check_equal(np.asarray(y), np.array(expected, np.int32))
        # Constants of NumPy keep their values, even if JAX has no 64-bit types.
        harness.check_equal(
            np.asarray(index_arrays.below(numbers, rows)), np.array(expected, np.int32)
        )

    @parameterized.product(dtype=NARROW + WIDE)
    @pytest.mark.sample(2)
    def test_signed(self, dtype):
        numbers = extremes(dtype, 5)
        for wide in (False, True):
            with jax.enable_x64(wide):
                y = index_arrays.signed(index_arrays.integers("op", "x", numbers))
            info = np.iinfo(y.dtype)
            expected = [min(max(int(n), info.min), info.max) for n in numbers]
            self.assertEqual([int(v) for v in y], expected)
            self.assertEqual(
                y.dtype.itemsize == 8, wide and np.dtype(dtype) in (np.uint32, np.int64, np.uint64)
            )

    @parameterized.product(dtype=NARROW + WIDE, rows=(4, 75))
    @pytest.mark.sample(5)
    def test_take_rows(self, dtype, rows):
        table = harness.values(rows, 2) + np.float32(1)
        numbers = extremes(dtype, N * rows)
        expected = np.stack([take(table.reshape(-1, 2), numbers)] * N)
        batch = np.stack([numbers, numbers[::-1]])

        def every_way(a):
            x, i, b = a
            return (
                ops.take_rows(x, i, "i"),
                jax.vmap(lambda j: ops.take_rows(x, j, "i"))(b),
                ops.start(ops.take_rows, x, i, "i").done(),
                ops.take_rows(x, numbers, "i"),  # a constant of NumPy
                jax.grad(lambda t: ops.take_rows(t, i, "i").sum())(x),
            )

        with x64(dtype):
            arguments = (table, *(np.stack([a] * N) for a in (numbers, batch)))
            plain, batched, started, constant, gradient = harness.run(every_way, arguments)
            own = jax.vmap(lambda x: ops.take_rows(x, jnp.asarray(numbers), "j"), axis_name="j")(
                table
            )
        harness.check_equal(plain, expected)
        harness.check_equal(started, expected)
        harness.check_equal(constant, expected)
        harness.check_equal(np.asarray(own), expected)
        harness.check_equal(batched, np.stack([expected, expected[:, ::-1]], 1))
        times = np.zeros(N * rows)
        for n in map(int, numbers):
            if 0 <= n < len(times):
                times[n] += N
        expected_gradient = np.repeat(times[:, None], 2, 1).reshape(table.shape)
        np.testing.assert_array_equal(gradient, expected_gradient)

    @parameterized.product(dtype=NARROW + WIDE, experts=(4, 300))
    @pytest.mark.sample(3)
    def test_moe_dispatch(self, dtype, experts):
        numbers = extremes(dtype, experts)[:, None]
        x = np.ones((N, len(numbers), 1), np.float32)

        def counts(a):
            _, handle = ops.moe_dispatch(*a, "i", num_experts=experts)
            _, constant = ops.moe_dispatch(a[0], numbers, "i", num_experts=experts)
            return handle.counts, constant.counts, handle.group_sizes

        with x64(dtype):
            result = harness.run(counts, (x, np.stack([numbers] * N)))
        inside = [int(n) for n in numbers.ravel() if 0 <= int(n) < experts]
        expected = np.bincount(inside, minlength=experts)
        for got in result[:2]:
            np.testing.assert_array_equal(got, np.stack([expected] * N))
        np.testing.assert_array_equal(result[2].ravel(), N * expected)

    def test_64_bit_constants_without_x64(self):
        table = harness.values(4, 1)
        numbers = np.array([2**32, 2**32 + 1, -(2**32), 2**40 + 3, 3])
        y = harness.run(lambda x: ops.take_rows(x, numbers, "i"), table)
        harness.check_equal(y, np.stack([take(table.reshape(-1, 1), numbers)] * N))
        y = harness.run(lambda x: ops.take_rows(x, numbers.tolist(), "i"), table)
        harness.check_equal(y, np.stack([take(table.reshape(-1, 1), numbers)] * N))

    @parameterized.parameters(*NARROW, *WIDE)
    def test_ragged_all_to_all(self, dtype):
        # Only ranks 0 and 1 send, one row to each rank. So all numbers in the table fit into all
        # dtypes, even into int2.
        operand, output = harness.values(2, 3), harness.values(N, 3)
        table = np.zeros((N, 4, N), int)
        table[:, 0] = np.arange(N) % 2
        table[:, 1] = table[:, 3] = 1
        table[:, 2] = np.minimum(np.arange(N), 1)[:, None]
        table[2:, 1] = 0  # Only two ranks send: int2 has no 2.
        table[:, 3, 2:] = 0
        expected = output.copy()
        for sender, receiver in np.ndindex(2, N):
            expected[receiver, sender] = operand[sender, receiver % 2]
        with x64(dtype):
            y = harness.run(
                lambda a: ops.ragged_all_to_all(a[0], a[1], *a[2], axis_name="i"),
                (operand, output, table.astype(dtype)),
            )
        harness.check_equal(y, expected)

    def test_too_many_rows(self):
        big = jax.ShapeDtypeStruct((2**29, 1), np.int8)
        index = jax.ShapeDtypeStruct((3,), np.int32)
        mesh = harness.mesh()

        def trace(function, *arguments):
            body = jax.shard_map(
                function, mesh=mesh, in_specs=jax.P(), out_specs=jax.P("i"), check_vma=False
            )
            jax.jit(body).trace(*arguments)

        def batched(x, i):
            rows = jnp.broadcast_to(x[: 2**27], (4, 2**27, 1))
            return jax.vmap(lambda t, j: ops.take_rows(t, j, "i"))(rows, jnp.stack([i] * 4))

        def ragged(x, i):
            column = jnp.zeros(N, np.int32)
            return ops.ragged_all_to_all(x, x[:4], *[column] * 4, axis_name="i")

        def routed(x, i):
            experts = jnp.zeros((2**29, 1), np.int32)
            return ops.moe_dispatch(x, experts, axis_name="i", num_experts=N)[0]

        for function in (lambda x, i: ops.take_rows(x, i, "i"), batched, ragged, routed):
            with self.assertRaisesRegex(ValueError, r"2147483648 rows of .* at most 2\*\*31 - 1"):
                trace(function, big, index)


if __name__ == "__main__":
    absltest.main()
