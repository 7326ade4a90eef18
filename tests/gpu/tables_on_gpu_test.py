"""Starts and awaits rows of tables, traced as for GPUs. Nothing here needs a GPU.

The lowering for CUDA shows the calls. The values come from runs on CPU devices.
lab/fuzz/fuzz_tables.py runs on GPUs.
"""

import pathlib
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from lowered_calls import calls

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tables"))

from tables import StoreCase, expected_take, random_rows

import jax_cxl
from jax_cxl._job import lifecycle
from jax_cxl._table.columns import Column

_ROWS = 300


class TablesOnGpuTest(StoreCase):
    def setUp(self):
        super().setUp()
        # JAX's default backend decides how a start is traced.
        self.enterContext(mock.patch("jax.default_backend", lambda: "gpu"))

    def lower(self, function, *arguments):
        """Lowers a function for CUDA; returns the names of its calls of jax_cxl."""
        with (
            mock.patch.object(Column, "use", lambda self, platform: None),
            mock.patch.object(lifecycle, "register_handlers", lambda platform: None),
        ):
            traced = jax.jit(function).trace(*arguments)
            text = traced.lower(lowering_platforms=("cuda",)).as_text()
        return [name for name, *_ in calls(text)]

    @parameterized.product(dtype=("float32", "float8_e4m3fn", "int4"), mode=("fill", "clip"))
    @pytest.mark.sample(3)
    def test_same_as_the_whole(self, dtype, mode):
        # On GPUs XLA cannot slice int4 within a byte. So a row of int4 has 4 elements here, which
        # fill 2 bytes.
        rows = random_rows((_ROWS, 4 if dtype == "int4" else 3), dtype)
        table = self.create(rows)
        ids = np.random.default_rng(0).integers(-400, 400, (4, 5))

        def split(ids):
            future = jax_cxl.start(table.take, ids, mode=mode)
            tied = future.tie(ids + 1)
            return future.done(after=tied)

        expected = expected_take(rows, ids, mode)
        self.assert_bits(jax.jit(split)(ids), expected)
        self.assert_bits(split(ids), expected, "outside of jit")
        self.assert_bits(jax.jit(jax.vmap(split))(ids), expected)
        mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))
        spread = jax.shard_map(split, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
        self.assert_bits(jax.jit(spread)(ids), expected)

        def step(taken, ids):
            future = jax_cxl.start(table.take, ids, mode=mode)
            return future.done(after=taken), taken

        last, taken = jax.jit(lambda ids: jax.lax.scan(step, table.take(ids[0]), ids))(
            np.clip(ids, 0, 299)
        )
        self.assert_bits(taken, expected_take(rows, np.clip(ids, 0, 299)[[0, 0, 1, 2]], mode))
        self.assert_bits(last, expected_take(rows, np.clip(ids, 0, 299)[3], mode))

    def test_gradients(self):
        table = self.create(np.random.default_rng(0).random((_ROWS, 4), np.float32))
        ids = jnp.array([5, 7, 5])

        def loss(take, delta):
            return jnp.sum(jnp.tanh(take(ids, delta=delta)))

        delta = jnp.zeros((3, 4))
        split = jax.jit(
            jax.grad(lambda d: loss(lambda *a, **k: jax_cxl.start(table.take, *a, **k).done(), d))
        )
        self.assert_bits(split(delta), jax.jit(jax.grad(lambda d: loss(table.take, d)))(delta))

    def test_calls_for_gpus(self):
        table = self.create(random_rows((_ROWS, 3), "float32"))

        def split(ids, x, mode="fill"):
            future = jax_cxl.start(table.take, ids, mode=mode)
            x = future.tie(x)
            x = jnp.tanh(x @ x)
            return future.done(after=x), x

        arguments = jnp.zeros(7, np.int32), jnp.ones((4, 4))
        self.assertEqual(self.lower(split, *arguments), ["start_table", "tie", "table_done"])
        for ids, mode in ((arguments[0], "error"), (jnp.zeros(0, np.int32), "fill")):
            found = self.lower(lambda i, x, m=mode: split(i, x, m), ids, arguments[1])
            self.assertEqual(found, ["table"])

    def test_a_future_does_not_leave_its_loop(self):
        table = self.create(random_rows((_ROWS, 3), "float32"))

        def step(future, ids):
            rows = future.done()
            return jax_cxl.start(table.take, ids), rows

        def loop(ids):
            return jax.lax.scan(step, jax_cxl.start(table.take, ids[0]), ids)[1]

        with self.assertRaisesRegex(NotImplementedError, "crosses the boundary of a loop"):
            self.lower(loop, jnp.zeros((4, 5), np.int32))

    def test_wrong_arguments(self):
        table = self.create(random_rows((_ROWS, 3), "float32"))
        with self.assertRaisesRegex(TypeError, "ids must be integers"):
            jax_cxl.start(table.take, [1.0])
        with self.assertRaisesRegex(ValueError, "mode='wrap' must be"):
            jax_cxl.start(table.take, [1], mode="wrap")


if __name__ == "__main__":
    absltest.main()
