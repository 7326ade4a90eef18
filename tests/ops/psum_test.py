"""jax_cxl.psum and the other reductions to all ranks against NumPy."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl.ops import public as ops


def oracle(x, function=np.add):
    return np.stack([harness.fold(x, function)] * len(x))


class PsumTest(parameterized.TestCase):
    @parameterized.product(shape=((), (3,), (2, 1000)), check_vma=(False, True))
    def test_shapes(self, shape, check_vma):
        x = harness.uneven_values(*shape)
        y = harness.run(lambda v: jax_cxl.psum(v, "i"), x, check_vma=check_vma)
        harness.check_equal(y, oracle(x))

    @parameterized.parameters(np.int8, np.uint32, np.float16, ml_dtypes.bfloat16, np.complex64)
    def test_dtypes(self, dtype):
        make = harness.values if np.dtype(dtype).kind in "iu" else harness.uneven_values
        x = make(5, dtype=dtype)
        harness.check_equal(harness.run(lambda v: jax_cxl.psum(v, "i"), x), oracle(x))

    def test_bool_counts(self):
        x = harness.values(5, dtype=bool)
        y = harness.run(lambda v: jax_cxl.psum(v, "i"), x)
        harness.check_equal(y, oracle(x.astype(np.int32)))

    def test_without_check_vma(self):
        # Without check_vma, psum is its own transpose, and types do not tell that all ranks have
        # the same result. So check_linear applies.
        harness.check_linear(lambda v: jax_cxl.psum(v, "i"), oracle, 2, 3, check_vma=False)

    def test_gradient_with_check_vma_needs_no_communication(self):
        x = harness.values(3)
        total = jax.jit(
            jax.shard_map(
                lambda v: jax_cxl.psum(v[0], "i"),
                mesh=harness.mesh(),
                in_specs=jax.P("i"),
                out_specs=jax.P(),
            )
        )
        gradient = jax.jit(jax.grad(lambda v: jnp.sum(total(v) ** 2) / 2))
        harness.check_equal(np.asarray(gradient(x)), oracle(x))
        self.assertEqual(gradient.lower(x).as_text().count("jax_cxl_collective"), 1)

    def test_batching_with_check_vma(self):
        x = harness.values(3, 2)
        for dim in (0, 1):
            y = harness.run(jax.vmap(lambda v: jax_cxl.psum(v, "i"), dim, dim), x)
            harness.check_equal(y, oracle(x))
        # The sum is over an axis of vmap and an axis of the mesh.
        y = harness.run(jax.vmap(lambda v: jax_cxl.psum(v, ("i", "b")), axis_name="b"), x)
        harness.check_equal(y, oracle(np.stack([x.sum(1)] * 3, 1)))

    def test_constants_are_multiplied(self):
        def body(v):
            size = jax_cxl.psum(1, "i")
            self.assertIsInstance(size, int)
            return v + size, jax_cxl.psum((2.5, np.arange(2), True), "i")

        x = harness.values(2, dtype=np.int32)
        lowered = harness.program(body, check_vma=True).lower(x).as_text()
        self.assertNotIn("jax_cxl_collective", lowered)
        y, (number, array, one) = harness.run(body, x)
        harness.check_equal(y, x + 4)
        np.testing.assert_array_equal(number[0], 10.0)
        np.testing.assert_array_equal(array[0], [0, 4])
        np.testing.assert_array_equal(one[0], 4)

    @parameterized.parameters(False, True)
    def test_groups(self, check_vma):
        x = harness.uneven_values(3)
        y = harness.run(
            lambda v: jax_cxl.psum(v, "i", axis_index_groups=harness.GROUPS),
            x,
            check_vma=check_vma,
        )
        harness.check_equal(y, harness.by_group(oracle)(x))

    @parameterized.parameters("i", "j", ("i", "j"), ("j", "i"))
    def test_several_axes(self, *axis_name):
        groups = {
            ("i",): [[0, 2], [1, 3]],
            ("j",): [[0, 1], [2, 3]],
            ("i", "j"): [[0, 1, 2, 3]],
            ("j", "i"): [[0, 2, 1, 3]],
        }[axis_name]
        x = harness.uneven_values(3)
        y = harness.run(
            lambda v: jax_cxl.psum(v, axis_name),
            x,
            on=harness.mesh((2, 2), ("i", "j")),
        )
        harness.check_equal(y, harness.by_group(oracle, groups)(x))

    def test_result_stops_varying(self):
        def body(v):
            out = jax_cxl.psum(v, "i")
            self.assertEqual(jax.typeof(out).manual_axis_type.varying, frozenset())
            grouped = jax_cxl.psum(v, "i", axis_index_groups=harness.GROUPS)
            self.assertEqual(jax.typeof(grouped).manual_axis_type.varying, {"i"})
            return out

        harness.run(body, harness.values(2))


class OtherReductionsTest(parameterized.TestCase):
    @parameterized.product(
        name=("pmax", "pmin"),
        dtype=(bool, np.int8, np.float32, ml_dtypes.bfloat16),
        check_vma=(False, True),
    )
    @pytest.mark.sample(3)
    def test_extrema(self, name, dtype, check_vma):
        operation = getattr(ops, name)
        function = np.maximum if name == "pmax" else np.minimum
        x = harness.values(3, 2, dtype=dtype)
        self._check(operation, function, x, check_vma)

    def _check(self, operation, function, x, check_vma):
        y = harness.run(lambda v: operation(v, "i"), x, check_vma=check_vma)
        harness.check_equal(y, oracle(x, function))
        y = harness.run(jax.vmap(lambda v: operation(v, "i"), 1, 1), x)
        harness.check_equal(y, oracle(x, function))
        own = jax.vmap(lambda v: operation(v, "i"), axis_name="i")(x)
        harness.check_equal(np.asarray(own), oracle(x, function))
        y = harness.run(lambda v: operation(v, "i", axis_index_groups=harness.GROUPS), x)
        harness.check_equal(y, harness.by_group(lambda g: oracle(g, function))(x))

    @parameterized.product(
        name=("pand", "por"),
        dtype=(bool, np.int8, np.uint32, np.int64, "uint4"),
        check_vma=(False, True),
    )
    @pytest.mark.sample(3)
    def test_bitwise(self, name, dtype, check_vma):
        operation = getattr(ops, name)
        function = np.bitwise_and if name == "pand" else np.bitwise_or
        with jax.enable_x64(True):
            x = harness.values(70, 8, dtype=np.int64).astype(dtype)
            if dtype != "uint4":
                x[:, ::2] = ~x[:, ::2]
            self._check(operation, function, x, check_vma)

    @parameterized.parameters("pand", "por")
    def test_bitwise_of_floats(self, name):
        x = harness.values(2)
        operation = getattr(ops, name)
        with self.assertRaisesRegex(TypeError, f"{name} does not.*float32: only bool and integers"):
            harness.run(lambda v: operation(v, "i"), x)
        with self.assertRaisesRegex(TypeError, f"{name} does not.*float32: only bool and integers"):
            jax.vmap(lambda v: operation(v, "i"), axis_name="i")(x)
        with self.assertRaisesRegex(TypeError, f"{name} does not.*float32: only bool and integers"):
            harness.run(jax.grad(lambda v: operation(v, "i").sum()), x)

    @parameterized.parameters("pmax", "pmin", "pand", "por")
    def test_python_values_over_an_axis_of_vmap(self, name):
        operation = getattr(ops, name)
        zeros = np.zeros(2, int)
        for value in (True, 3):
            own = jax.vmap(lambda v, of=value: v + operation(of, "i"), axis_name="i")(zeros)
            self.assertEqual(own.tolist(), [value] * 2)

    def test_extrema_of_complex_numbers(self):
        with self.assertRaisesRegex(TypeError, "complex64.*no order"):
            harness.run(lambda v: ops.pmax(v, "i"), harness.values(2, dtype=np.complex64))

    @parameterized.parameters(False, True)
    def test_pmean(self, check_vma):
        x = harness.values(3)
        y = harness.run(lambda v: ops.pmean(v, "i"), x, check_vma=check_vma)
        harness.check_equal(y, oracle(x) / np.float32(4))
        y = harness.run(lambda v: ops.pmean(v.astype(int), "i"), x, check_vma=check_vma)
        harness.check_equal(y, oracle(x) / np.float32(4))

    def test_arguments_of_extrema(self):
        x = harness.values(50)
        y = harness.run(lambda v: ops.pargmax(v, "i"), x)
        harness.check_equal(y, np.stack([x.argmax(0)] * 4).astype(np.int32))
        y = harness.run(lambda v: ops.pargmin(v, "i"), x)
        self.assertIn("jax_cxl.pargmin(x", ops.pargmin.__doc__)
        harness.check_equal(y, np.stack([x.argmin(0)] * 4).astype(np.int32))


if __name__ == "__main__":
    absltest.main()
