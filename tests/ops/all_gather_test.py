"""jax_cxl.all_gather against NumPy."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized

import jax_cxl


def oracle(axis=0, tiled=False):
    def gather(x):
        joined = np.concatenate(x, axis) if tiled else np.stack(x, axis)
        return np.stack([joined] * len(x))

    return gather


class AllGatherTest(parameterized.TestCase):
    @parameterized.product(axis=(0, 1, 2, -1), tiled=(False, True), check_vma=(False, True))
    def test_axes(self, axis, tiled, check_vma):
        x = harness.uneven_values(2, 3, 5)
        y = harness.run(
            lambda v: jax_cxl.all_gather(v, "i", axis=axis, tiled=tiled),
            x,
            check_vma=check_vma,
        )
        harness.check_equal(y, oracle(axis, tiled)(x))

    @parameterized.product(axis=(0, 1), tiled=(False, True), check_vma=(False, True))
    @pytest.mark.sample(3)
    def test_transformations(self, axis, tiled, check_vma):
        harness.check_linear(
            lambda v: jax_cxl.all_gather(v, "i", axis=axis, tiled=tiled),
            oracle(axis, tiled),
            2,
            3,
            check_vma=check_vma,
        )

    @parameterized.parameters(
        bool,
        np.int8,
        np.uint16,
        np.int32,
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e8m0fnu,
        np.complex64,
    )
    def test_dtypes(self, dtype):
        x = harness.values(3, 2, dtype=dtype)
        y = harness.run(lambda v: jax_cxl.all_gather(v, "i"), x)
        harness.check_equal(y, oracle()(x))

    @parameterized.parameters(False, True)
    def test_groups(self, check_vma):
        x = harness.values(3)
        y = harness.run(
            lambda v: jax_cxl.all_gather(v, "i", axis_index_groups=harness.GROUPS),
            x,
            check_vma=check_vma,
        )
        harness.check_equal(y, harness.by_group(oracle())(x))

    @parameterized.parameters(
        (("i", "j"), [0, 1, 2, 3]), (("j", "i"), [0, 2, 1, 3]), ("i", None), ("j", None)
    )
    def test_several_axes(self, axis_name, order):
        x = harness.values(3)
        y = harness.run(
            lambda v: jax_cxl.all_gather(v, axis_name),
            x,
            on=harness.mesh((2, 2), ("i", "j")),
        )
        if order is not None:
            expected = np.stack([x[order]] * 4)
        else:
            groups = [[0, 2], [1, 3]] if axis_name == "i" else [[0, 1], [2, 3]]
            expected = harness.by_group(oracle(), groups)(x)
        harness.check_equal(y, expected)

    def test_invarying_result_leaves_replicated(self):
        gather = jax.jit(
            jax.shard_map(
                lambda v: jax_cxl.all_gather(v, "i", tiled=True, to="invarying"),
                mesh=harness.mesh(),
                in_specs=jax.P("i"),
                out_specs=jax.P(),
            )
        )
        x = np.arange(8.0, dtype=np.float32)
        harness.check_equal(np.asarray(gather(x)), x)
        # In the gradient, each rank takes its own part of the cotangent, without communication.
        gradient = jax.grad(lambda v: jnp.sum(gather(v) ** 2))
        harness.check_equal(np.asarray(gradient(x)), 2 * x)
        self.assertEqual(jax.jit(gradient).lower(x).as_text().count("all_gather"), 1)

    def test_pytrees_scalars_and_types(self):
        x = {"a": harness.values(2), "b": harness.values(dtype=np.int32)}
        y = harness.run(lambda v: jax_cxl.all_gather((v, 5), "i"), x)
        harness.check_equal(y[0]["a"], oracle()(x["a"]))
        harness.check_equal(y[0]["b"], oracle()(x["b"]))
        harness.check_equal(y[1], np.full((4, 4), 5, np.int32))
        shape = jax.eval_shape(
            harness.program(lambda v: jax_cxl.all_gather(v, "i"), check_vma=True),
            jax.ShapeDtypeStruct((4, 2, 3), jnp.bfloat16),
        )
        self.assertEqual((shape.shape, shape.dtype), ((4, 4, 2, 3), jnp.bfloat16))

    def test_result_varies_unless_asked_otherwise(self):
        varying = []

        def body(v):
            for to in ("varying", "invarying"):
                out = jax_cxl.all_gather(v, "i", to=to)
                varying.append(jax.typeof(out).manual_axis_type.varying)
            return v

        harness.run(body, harness.values(2))
        self.assertEqual(varying, [{"i"}, set()])

    @parameterized.parameters(
        (ValueError, "to=", {"to": "everywhere"}),
        (ValueError, "out of bounds", {"axis": 2}),
        (ValueError, "exactly once", {"axis_index_groups": [[0, 1], [2]]}),
        (ValueError, "same size", {"axis_index_groups": [[0, 1, 2], [3]]}),
        (NotImplementedError, "jax.lax.all_gather", {"to": "reduced"}),
        (
            NotImplementedError,
            "axis_index_groups",
            {"to": "invarying", "axis_index_groups": harness.GROUPS},
        ),
    )
    def test_wrong_arguments(self, error, message, arguments):
        with self.assertRaisesRegex(error, message):
            harness.run(lambda v: jax_cxl.all_gather(v, "i", **arguments), harness.values(2))


if __name__ == "__main__":
    absltest.main()
