"""jax_cxl.pscan and pexscan against NumPy."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl.ops import public as ops

FUNCTIONS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or}


def oracle(x, op="sum", reverse=False, exclusive=False, first=0):
    """Returns the scan of the ranks' values, folded in rank order."""
    results = []
    for rank in range(len(x)):
        begin, end = (rank + exclusive, len(x)) if reverse else (0, rank + 1 - exclusive)
        part = x[begin:end]
        results.append(
            harness.fold(part, {**FUNCTIONS, **BITWISE}[op])
            if len(part)
            else np.full_like(x[0], first)
        )
    return np.stack(results)


class ScanTest(parameterized.TestCase):
    @parameterized.product(exclusive=(False, True), reverse=(False, True), check_vma=(False, True))
    @pytest.mark.sample(3)
    def test_transformations(self, exclusive, reverse, check_vma):
        operation = ops.pexscan if exclusive else ops.pscan
        harness.check_linear(
            lambda v: operation(v, "i", reverse=reverse),
            functools.partial(oracle, reverse=reverse, exclusive=exclusive),
            2,
            3,
            check_vma=check_vma,
        )

    @parameterized.product(
        op=tuple(FUNCTIONS),
        dtype=(np.int8, np.uint32, np.float16, ml_dtypes.bfloat16, np.float32),
        exclusive=(False, True),
        reverse=(False, True),
    )
    @pytest.mark.sample(3)
    def test_operations(self, op, dtype, exclusive, reverse):
        integer = np.dtype(dtype).kind in "iu"
        x = (harness.values if integer else harness.uneven_values)(5, dtype=dtype)
        operation = ops.pexscan if exclusive else ops.pscan
        y = harness.run(lambda v: operation(v, "i", op=op, reverse=reverse), x)
        info = np.iinfo(dtype) if integer else None
        first = {
            "sum": 0,
            "prod": 1,
            "min": info.max if integer else np.inf,
            "max": info.min if integer else -np.inf,
        }[op]
        harness.check_equal(y, oracle(x, op, reverse, exclusive, first))

    @parameterized.product(
        op=tuple(BITWISE),
        dtype=(bool, np.int8, np.int64, np.uint16, "int4"),
        exclusive=(False, True),
        reverse=(False, True),
    )
    @pytest.mark.sample(7)
    def test_bitwise(self, op, dtype, exclusive, reverse):
        with jax.enable_x64(True):
            x = harness.values(5, dtype=np.int64).astype(dtype)
            x = ~x if op == "and" else x
            operation = ops.pexscan if exclusive else ops.pscan
            y = harness.run(lambda v: operation(v, "i", op=op, reverse=reverse), x)
            first = np.zeros((), x.dtype)
            first = ~first if op == "and" else first
            harness.check_equal(y, oracle(x, op, reverse, exclusive, first))
            z = jax.vmap(lambda v: operation(v, "b", op=op, reverse=reverse), axis_name="b")(x)
            harness.check_equal(np.asarray(z), oracle(x, op, reverse, exclusive, first))

    def test_neutral_elements(self):
        for dtype, largest in (
            (bool, True),
            (ml_dtypes.float8_e4m3fn, 448),
            (ml_dtypes.float8_e5m2, np.inf),
            (np.uint8, 255),
        ):
            x = harness.values(2, dtype=dtype)
            y = harness.run(lambda v: ops.pexscan(v, "i", op="min"), x)
            self.assertEqual(y.dtype, x.dtype)
            np.testing.assert_array_equal(y[0], np.full(2, largest, dtype))

    def test_bool_counts(self):
        x = harness.values(5, dtype=bool)
        y = harness.run(lambda v: ops.pscan(v, "i"), x)
        harness.check_equal(y, np.cumsum(x, 0, dtype=np.int32))

    @parameterized.parameters(*FUNCTIONS)
    def test_own_axis_of_vmap(self, op):
        x = harness.values(3) + 1
        y = jax.vmap(lambda v: ops.pscan(v, "b", op=op), axis_name="b")(x)
        harness.check_equal(np.asarray(y), oracle(x, op))

    def test_several_axes_and_many_chunks(self):
        on = harness.mesh((2, 2), ("i", "j"))
        x = harness.uneven_values(500_000)
        y = harness.run(lambda v: ops.pscan(v, ("j", "i")), x, on=on)
        order = [0, 2, 1, 3]  # Ranks in the order of ("j", "i").
        harness.check_equal(y[order], oracle(x[order]))

    def test_errors(self):
        x = harness.values(2)
        for op in ("mean", "SUM", None):
            with self.assertRaisesRegex(ValueError, "must be one of sum, prod"):
                harness.run(lambda v, op=op: ops.pscan(v, "i", op=op), x)
        with self.assertRaisesRegex(TypeError, "no order"):
            harness.run(lambda v: ops.pscan(v.astype(np.complex64), "i", op="max"), x)
        with self.assertRaisesRegex(TypeError, "only bool and integers"):
            harness.run(lambda v: ops.pscan(v, "i", op="and"), x.astype(np.float32))
        with self.assertRaisesRegex(NotImplementedError, "Only op='sum'"):
            harness.run(jax.grad(lambda v: jnp.sum(ops.pscan(v, "i", op="prod"))), x)
        with self.assertRaisesRegex(NameError, "jax_cxl.pexscan"):
            jax_cxl.pexscan(x, "i")


if __name__ == "__main__":
    absltest.main()
