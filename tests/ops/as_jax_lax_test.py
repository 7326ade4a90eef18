"""Settings and arrays for which jax_cxl behaves as jax.lax, or raises an error."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized
from jax import lax

import jax_cxl
from jax_cxl import _compat

_P = jax.P


def _mesh(kind: jax.sharding.AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("i", "j"), axis_types=(kind, kind))


class OrderOfAxesTest(parameterized.TestCase):
    """`ppermute` over two axes, in the order of the mesh and in the opposite order."""

    def run_over(self, axes, module):
        ring = [(i, (i + 1) % 8) for i in range(8)]
        spec = _P(("i", "j"))
        body = jax.shard_map(
            lambda x: module.ppermute(x, axes, ring),
            mesh=_mesh(jax.sharding.AxisType.Auto),
            in_specs=spec,
            out_specs=spec,
        )
        return np.asarray(jax.jit(body)(jnp.arange(8.0)))

    def test_the_order_of_the_mesh(self):
        np.testing.assert_array_equal(
            self.run_over(("i", "j"), jax_cxl), self.run_over(("i", "j"), lax)
        )

    def test_another_order_is_as_in_jax_lax_of_this_version(self):
        if _compat.tracing.refuses_other_orders_of_axes():
            with self.assertRaisesRegex(ValueError, "is not in the order of the mesh"):
                self.run_over(("j", "i"), jax_cxl)
            with self.assertRaises(RuntimeError):
                self.run_over(("j", "i"), lax)
        else:
            np.testing.assert_array_equal(
                self.run_over(("j", "i"), jax_cxl), self.run_over(("j", "i"), lax)
            )

    def test_newer_versions_count_in_the_order_that_is_given(self):
        with (
            mock.patch.object(_compat.tracing, "refuses_other_orders_of_axes", return_value=False),
            mock.patch.object(_compat.tracing, "sorts_axes_of_ppermute", return_value=False),
        ):
            found = self.run_over(("j", "i"), jax_cxl)
        # In this order, the device at (i, j) of the mesh is rank 2 j + i. Its value is 4 i + j.
        np.testing.assert_array_equal(found, [7, 4, 5, 6, 0, 1, 2, 3])

    def test_newer_versions_refuse_another_order_by_default(self):
        with (
            mock.patch.object(_compat.tracing, "refuses_other_orders_of_axes", return_value=True),
            self.assertRaisesRegex(ValueError, r"not in the order of the mesh, \('i', 'j'\)"),
        ):
            self.run_over(("j", "i"), jax_cxl)


class RankPromotionTest(parameterized.TestCase):
    """`ragged_all_to_all` under `jax_numpy_rank_promotion="raise"`."""

    def setUp(self):
        super().setUp()
        self.enter_context(jax.numpy_rank_promotion("raise"))
        self.arrays = [
            *(jnp.array([1.0, 2, 2, 3, 4, 0]), jnp.zeros(8)),
            *(jnp.array([0, 1, 0, 1]), jnp.array([1, 2, 1, 1])),
            *(jnp.array([0, 0, 1, 2]), jnp.array([1, 1, 2, 1])),
        ]
        self.expected = np.array([1.0, 3, 0, 0, 2, 2, 4, 0])

    def exchange(self, ranks=2):
        mesh = jax.make_mesh(
            (ranks,),
            ("i",),
            axis_types=(jax.sharding.AxisType.Auto,),
            devices=jax.devices()[:ranks],
        )
        return jax.shard_map(
            lambda *a: jax_cxl.ragged_all_to_all(*a, axis_name="i"),
            mesh=mesh,
            in_specs=_P("i"),
            out_specs=_P("i"),
        )

    def test_by_itself(self):
        found = jax.jit(self.exchange())(*self.arrays)
        np.testing.assert_array_equal(found, self.expected)

    def test_a_group_of_one_rank(self):
        rows, into, *columns = self.arrays
        found = jax.jit(self.exchange(ranks=1))(rows, into, *(c[:1] for c in columns))
        np.testing.assert_array_equal(found, [1.0, 0, 0, 0, 0, 0, 0, 0])

    def test_vmap(self):
        stacked = [jnp.stack([v, v]) for v in self.arrays]
        found = jax.jit(jax.vmap(self.exchange()))(*stacked)
        np.testing.assert_array_equal(found, [self.expected, self.expected])

    def test_the_axis_of_vmap(self):
        halves = [v.reshape(2, -1) for v in self.arrays]
        found = jax.vmap(lambda *a: jax_cxl.ragged_all_to_all(*a, axis_name="i"), axis_name="i")(
            *halves
        )
        np.testing.assert_array_equal(found.reshape(-1), self.expected)

    def test_the_gradient(self):
        rows, into, *columns = self.arrays

        def loss(rows):
            return jnp.sum(self.exchange()(rows, into, *columns) ** 2)

        np.testing.assert_array_equal(jax.grad(loss)(rows), [2.0, 4, 4, 6, 8, 0])


class NotSupportedTest(parameterized.TestCase):
    """Everything that docs/collectives.md lists as not supported raises an error."""

    @parameterized.parameters("psum", "pmean", "psum_scatter", "all_gather", "pmax")
    def test_unreduced_arrays(self, name):
        keywords = {"tiled": True} if name in ("psum_scatter", "all_gather") else {}
        with jax.set_mesh(_mesh(jax.sharding.AxisType.Explicit)):
            x = jax.device_put(jnp.arange(8.0), _P("i"))
            body = jax.shard_map(
                lambda v: getattr(jax_cxl, name)(
                    lax.pcast(v, "i", to="unreduced"), "i", **keywords
                ),
                in_specs=_P("i"),
                out_specs=_P("i"),
            )
            with self.assertRaisesRegex(NotImplementedError, "do not take arrays that are unred"):
                jax.jit(body)(x)

    @parameterized.parameters("psum", "pmean", "pmax", "pmin", "all_gather", "all_to_all")
    def test_positional_axes(self, name):
        more = (0, 0) if name == "all_to_all" else ()
        with self.assertRaisesRegex(TypeError, "named axes, got axis_name=0. Reduce positional"):
            harness.run(lambda x: getattr(jax_cxl, name)(x, (0, "i"), *more), np.ones((4, 4)))

    @parameterized.parameters("ppermute", "pshuffle", "all_to_all", "all_gather", "pbroadcast")
    def test_typed_keys(self, name):
        more = {
            "ppermute": ([(0, 1)],),
            "pshuffle": ([1, 2, 3, 0],),
            "all_to_all": (0, 0),
            "pbroadcast": (0,),
        }.get(name, ())

        def body(x):
            keys = jax.random.split(jax.random.key(x[0]), 4)
            return jax.random.key_data(getattr(jax_cxl, name)(keys, "i", *more))

        with self.assertRaisesRegex(
            TypeError, r"arrays of dtype key<fry>. Pass its data, .*key_data"
        ):
            harness.run(body, np.ones((4, 1), np.int32))

    @parameterized.parameters("all_to_all", "all_gather", "psum_scatter", "ppermute")
    def test_an_axis_of_vmap_and_a_mesh_axis(self, name):
        more = {"all_to_all": (0, 0), "ppermute": ([(0, 1)],)}.get(name, ())

        def body(x):
            both = jax.vmap(lambda v: getattr(jax_cxl, name)(v, ("v", "i"), *more), axis_name="v")
            return both(x)

        with self.assertRaisesRegex(NotImplementedError, "call it once for each axis"):
            harness.run(body, np.ones((4, 2, 8), np.float32))

    def test_to_reduced(self):
        with jax.set_mesh(_mesh(jax.sharding.AxisType.Explicit)):
            x = jax.device_put(jnp.arange(8.0), _P("i"))
            body = jax.shard_map(
                lambda v: jax_cxl.all_gather(v, "i", tiled=True, to="reduced"),
                in_specs=_P("i"),
                out_specs=_P(reduced={"i"}),
            )
            with self.assertRaisesRegex(NotImplementedError, "does not support to='reduced'"):
                jax.jit(body)(x)

    def test_an_axis_that_vmap_has_taken(self):
        with jax.set_mesh(_mesh(jax.sharding.AxisType.Explicit)):
            x = jax.device_put(jnp.ones((4, 8)), _P("i", None))
            body = jax.shard_map(lambda v: jax_cxl.psum(v, "i"), in_specs=_P(), out_specs=_P())
            with self.assertRaisesRegex(NotImplementedError, "jax.vmap is around jax.shard_map"):
                jax.jit(jax.vmap(body))(x)


if __name__ == "__main__":
    absltest.main()
