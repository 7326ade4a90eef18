"""Rows that programs take: bitwise against NumPy, for all dtypes, modes and transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from tables import DTYPES, StoreCase, bits, expected_take, random_rows

import jax_cxl

_ROWS = 997


def _ids(shape, seed=0, bound=2 * _ROWS):
    """Returns ids with duplicates, outside of the table at both ends, and at its bounds."""
    ids = np.random.default_rng(seed).integers(-bound, bound, shape)
    edges = [0, -1, _ROWS - 1, _ROWS, -_ROWS, -_ROWS - 1, 2**31 - 1, -(2**31), 5, 5]
    flat = ids.reshape(-1)
    flat[: len(edges)] = edges[: flat.size]
    return ids


class TakeTest(StoreCase):
    @parameterized.parameters(*DTYPES)
    @pytest.mark.sample(3)
    def test_dtypes(self, dtype):
        ids = _ids((7, 31))
        for width in ((), (3,), (5, 16)):
            rows = random_rows((_ROWS, *width), dtype)
            with self.create(rows, name=f"{dtype} {width}") as table:
                for mode in ("fill", "clip"):
                    found = jax.jit(lambda ids, t=table, m=mode: t.take(ids, mode=m))(ids)
                    expected = expected_take(rows, ids, mode)
                    self.assert_bits(found, expected, f"{dtype} {width} {mode}")

    @parameterized.parameters("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
    def test_dtypes_of_ids(self, dtype):
        rows = random_rows((_ROWS, 5), "float32")
        limits = np.iinfo(dtype)
        ids = np.clip(_ids(300), limits.min, limits.max).astype(dtype)
        ids[-3:] = limits.min, limits.max, limits.max // 2
        table = self.create(rows)
        for mode in ("fill", "clip"):
            for given in (ids, jnp.asarray(ids) if dtype != "int64" else ids):
                self.assert_bits(table.take(given, mode=mode), expected_take(rows, ids, mode))

    @parameterized.parameters({}, {"mode": "clip"}, {"fill_value": 2, "dtype": "float16"})
    def test_two_halves(self, **how):
        table = self.create(random_rows((_ROWS, 5), "float32"))
        ids = _ids(300)
        found = jax.jit(lambda ids: jax_cxl.start(table.take, ids, **how).done())(ids)
        self.assert_bits(found, table.take(ids, **how))
        with self.assertRaisesRegex(TypeError, "'mod'"):
            jax_cxl.start(table.take, ids, mod="clip")

    def test_transformations(self):
        rows = random_rows((_ROWS, 9), "int32")
        table = self.create(rows)
        ids = _ids((8, 4, 6))
        expected = expected_take(rows, ids, "fill")
        take = table.take
        mesh = jax.make_mesh((8,), ("i",), (jax.sharding.AxisType.Auto,))
        explicit = jax.make_mesh((8,), ("i",), (jax.sharding.AxisType.Explicit,))
        on_mesh = jax.device_put(ids.astype(np.int32), jax.NamedSharding(explicit, jax.P("i")))

        def scan(ids):
            return jax.lax.scan(lambda _, one: (None, take(one)), None, ids)[1]

        def loop(ids):
            out = jnp.zeros(expected.shape, np.int32)
            return jax.lax.fori_loop(0, 8, lambda i, out: out.at[i].set(take(ids[i])), out)

        for name, function in {
            "eager": take,
            "jit": jax.jit(take),
            "vmap": jax.vmap(take),
            "vmap of the middle": jax.vmap(take, in_axes=1, out_axes=1),
            "vmap twice": jax.jit(jax.vmap(jax.vmap(take))),
            "scan": jax.jit(scan),
            "loop": jax.jit(loop),
            "vmap of scan": jax.jit(jax.vmap(scan)),
            "cond": lambda ids: jax.lax.cond(ids[0, 0, 0] == 0, take, lambda x: take(x) * 0, ids),
            "checkpoint": jax.jit(jax.checkpoint(take)),
            "shard_map": jax.jit(
                jax.shard_map(take, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
            ),
        }.items():
            self.assert_bits(function(ids.astype(np.int32)), expected, name)
        with jax.set_mesh(explicit):
            found = jax.jit(take)(on_mesh)
        self.assert_bits(found, expected)
        self.assertEqual(found.sharding.spec, jax.P("i", None, None, None))
        self.assertFalse(set(jax.make_jaxpr(take)(ids).consts), "the table is not an operand")

    def test_many_rows_in_chunks_of_all_threads(self):
        rows = random_rows((_ROWS, 64), "float32")
        ids = _ids(200_001)
        table = self.create(rows)
        self.assert_bits(jax.jit(table.take)(ids), expected_take(rows, ids, "fill"))

    def test_shapes_without_elements(self):
        table = self.create(np.zeros((0, 4), np.float32), name="no rows")
        self.assert_bits(table.take([0, 3]), np.full((2, 4), np.nan, np.float32))
        self.assertEqual(table.take(np.zeros((0, 2), int)).shape, (0, 2, 4))
        with self.assertRaisesRegex(ValueError, "needs a table that has rows"):
            table.take([0], mode="clip")
        with self.assertRaisesRegex(jax_cxl.InvalidCollectiveError, "id 0 at position 0 .* 0 rows"):
            jax.block_until_ready(table.take([0], mode="error"))
        table = self.create(np.zeros((3, 0), np.float32), name="no columns")
        self.assertEqual(jax.jit(table.take)(jnp.array([[2, 9]])).shape, (1, 2, 0))

    def test_an_error_names_the_first_id_outside(self):
        rows = random_rows((_ROWS, 5), "float32")
        table = self.create(rows)
        take = jax.jit(lambda ids: table.take(ids, mode="error"))
        ids = np.random.default_rng(1).integers(-_ROWS, _ROWS, 50_000)
        self.assert_bits(take(ids), expected_take(rows, ids, "fill"))
        for wrong in (_ROWS, -_ROWS - 1, 2**31 - 1):
            bad = ids.copy()
            bad[[40_000, 49_999]] = wrong, 12345
            message = f"id {wrong} at position 40000 is outside of a table of {_ROWS} rows"
            with self.assertRaisesRegex(jax_cxl.InvalidCollectiveError, message):
                jax.block_until_ready(take(bad))
        self.assert_bits(take(ids), expected_take(rows, ids, "fill"), "the next call works")

    def test_fill_value_and_dtype(self):
        rows = random_rows((_ROWS, 5), "int8")
        table = self.create(rows)
        ids = _ids(50)
        self.assert_bits(
            table.take(ids, fill_value=-7, dtype=np.float32),
            expected_take(rows, ids, "fill", -7).astype(np.float32),
        )

    def test_gradients_are_those_of_the_rows(self):
        rows = random_rows((_ROWS, 6), "bfloat16")
        rows = np.where(np.isfinite(rows.astype(np.float32)), rows, 1).astype(rows.dtype)
        table = self.create(rows)
        ids = np.random.default_rng(0).integers(0, _ROWS, (4, 8))

        def loss(weights, delta, ids):
            return jnp.sum(jnp.tanh(table.take(ids, delta=delta) @ weights))

        def dense(weights, taken, ids):
            return jnp.sum(jnp.tanh(taken @ weights))

        weights = jnp.ones((6, 2))
        delta = jnp.zeros((4, 8, 6))
        taken = jnp.asarray(rows[ids], np.float32)
        expected = jax.jit(jax.grad(dense, argnums=(0, 1)))(weights, taken, ids)
        found = jax.jit(jax.grad(loss, argnums=(0, 1)))(weights, delta, ids)
        jax.tree.map(self.assert_bits, found, expected)
        by_element = jax.vmap(jax.grad(loss, argnums=1), in_axes=(None, 0, 0))
        self.assert_bits(jax.jit(by_element)(weights, delta, ids), expected[1])
        self.assertEqual(bits(loss(weights, delta + 5, ids)), bits(loss(weights, delta, ids)))
        with self.assertRaisesRegex(ValueError, "delta must be"):
            table.take(ids, delta=jnp.zeros(3))

    def test_wrong_arguments(self):
        table = self.create(random_rows((_ROWS, 5), "float32"))
        for arguments, message in (
            ({"mode": "wrap"}, "mode='wrap' must be"),
            ({"mode": "clip", "fill_value": 1}, "fill_value=1 must be a number, and mode"),
            ({"fill_value": [1, 2]}, "fill_value=.* must be a number"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                table.take([1], **arguments)
        for ids in ([1.0], np.array([True])):
            with self.assertRaisesRegex(TypeError, "ids must be integers"):
                table.take(ids)
        wide = self.create(random_rows((8, 5), "float64"), name="wide")
        with self.assertRaisesRegex(TypeError, "float64: set jax_enable_x64"):
            wide.take([1])


if __name__ == "__main__":
    absltest.main()
