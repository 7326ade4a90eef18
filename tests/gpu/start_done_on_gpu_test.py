"""Start and done as they are traced for GPUs, lowered for CUDA or run on CPU devices.

Nothing here needs a GPU. The lowering for CUDA shows the calls and how they depend on each other.
To check the values, the programs run on CPU devices, where the lowering rules of start and done
are trivial. tests/gpu/cuda_test.py runs on GPUs.
"""

import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized
from halves import ARGUMENTS, LINEAR, dtype_for, halves
from lowered_calls import calls

from jax_cxl.ops import public as ops


def lower(function, *arguments, check_vma=True):
    """Lowers a function of each rank's values for CUDA; returns the program's text."""
    program = jax.shard_map(
        function,
        mesh=harness.mesh(),
        in_specs=jax.P("i"),
        out_specs=jax.P("i"),
        check_vma=check_vma,
    )
    return jax.jit(program).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


class OnGpuTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # JAX's default backend decides how start and done are traced.
        self.enterContext(mock.patch("jax.default_backend", lambda: "gpu"))

    @parameterized.product(name=tuple(ARGUMENTS), check_vma=(False, True))
    @pytest.mark.sample(3)
    def test_same_as_the_whole(self, name, check_vma):
        start, done = halves(name)
        options = ARGUMENTS[name]
        whole = getattr(ops, name)

        def split(v):
            future = start({"a": v, "b": [2 * v]}, "i", **options)
            w = future.tie({"w": v + 1, "n": 3})
            return done(future, after=w), w

        def at_once(v):
            return whole({"a": v, "b": [2 * v]}, "i", **options), {"w": v + 1, "n": 3}

        x = harness.values(4, 4, dtype=dtype_for(name))
        expected = harness.run(at_once, x, check_vma=check_vma)
        actual = harness.run(split, x, check_vma=check_vma)
        jax.tree.map(harness.check_equal, actual, expected)

    @parameterized.parameters(False, True)
    def test_ragged_is_done_at_once(self, check_vma):
        def exchange(operation):
            def body(v):
                ones = jnp.arange(4, dtype=np.int32), jnp.ones(4, np.int32)
                to = jnp.full(4, jax.lax.axis_index("i"), np.int32), jnp.ones(4, np.int32)
                return operation(v, jnp.zeros_like(v), *ones, *to, axis_name="i")

            return body

        x = harness.values(4, 2)
        start, done = halves("ragged_all_to_all")
        expected = harness.run(exchange(ops.ragged_all_to_all), x, check_vma=check_vma)
        actual = harness.run(exchange(lambda *a, **k: done(start(*a, **k))), x, check_vma=check_vma)
        harness.check_equal(actual, expected)

    @parameterized.product(published=(False, True), check_vma=(False, True))
    @pytest.mark.sample(2)
    def test_rows(self, published, check_vma):
        indices = jnp.array([5, 0, -1, 15, 2, 2], np.int32)

        def split(v):
            options = {"published": jnp.ones(4, bool)} if published else {}
            future = ops.start(ops.take_rows, v, indices, "i", **options)
            w = future.tie(v + 1)
            return future.done(after=w), w

        def at_once(v):
            return ops.take_rows(v, indices, "i"), v + 1

        x = harness.values(4, 4)
        expected = harness.run(at_once, x, check_vma=check_vma)
        jax.tree.map(harness.check_equal, harness.run(split, x, check_vma=check_vma), expected)

        def loss(operation):
            return lambda v: sum(jnp.sum(y**2) for y in operation(v))

        expected = harness.run(jax.grad(loss(at_once)), x, check_vma=check_vma)
        actual = harness.run(jax.grad(loss(split)), x, check_vma=check_vma)
        harness.check_equal(actual, expected)

        (name, started, _, rest), (tie, *_), (done, _, kept, _) = calls(
            lower(split, x.reshape(-1, 4), check_vma=check_vma)
        )
        self.assertEqual((name, tie, done), ("start_rows", "tie", "done"))
        self.assertIn("has_side_effect = true", rest)
        # A start returns a result, scratch memory and a token. The done has the result, the scratch
        # memory and all operands of the start as its operands. So all of them stay alive until the
        # done.
        self.assertIn(f"{started}#0", kept)
        self.assertIn(f"{started}#1", kept)
        self.assertLen(kept, 4 + published + 1)

    @parameterized.product(
        limit=({"capacity": 6}, {"max_rows": 20}), num_experts=(4, 8), check_vma=(False, True)
    )
    @pytest.mark.sample(8)
    def test_experts(self, limit, num_experts, check_vma):
        """Only the two moves of rows are started; the other collectives are blocking calls."""
        ranks, tokens = harness.RANKS, 6
        experts = np.random.default_rng(0).integers(-1, num_experts, (ranks, tokens, 2))
        weights = harness.values(tokens, 2)

        def layer(a, split):
            x, experts, weights = a
            options = {"num_experts": num_experts, **limit}
            if not split:
                rows, handle = ops.moe_dispatch(x, experts, "i", **options)
                return ops.moe_combine(jnp.sin(rows), weights, handle), jnp.cos(x)
            future = ops.start(ops.moe_dispatch, x, experts, "i", **options)
            w = jnp.cos(future.tie(x))
            rows, handle = future.done(after=w)
            future = ops.start(ops.moe_combine, jnp.sin(rows), weights, handle)
            w = future.tie(w)
            return future.done(after=w), w

        def loss(x, weights, a, split):
            return sum(jnp.sum(y**2) for y in layer((x, a[1], weights), split))

        operands = harness.values(tokens, 8), experts.astype(np.int32), weights
        for function in (
            layer,
            lambda a, split: jax.grad(loss, argnums=(0, 1))(a[0], a[2], a, split),
        ):
            expected, actual = (
                harness.run(lambda a, s=split: function(a, s), operands, check_vma=check_vma)  # noqa: B023
                for split in (False, True)
            )
            jax.tree.map(harness.check_equal, actual, expected)

        flat = jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, x.shape[-1]), operands)
        names = [call[0] for call in calls(lower(lambda *a: layer(a, True), *flat))]
        self.assertEqual(
            [name for name in names if name != "collective"],
            ["start_rows", "tie", "done", "start_rows", "tie", "done"],
        )
        # Three collectives are blocking. Two of them move the choices of experts and the places of
        # rows, before the dispatch moves its rows. The third moves the weights, before the combine
        # moves its rows.
        self.assertEqual(names[:3], ["collective", "collective", "start_rows"])
        self.assertEqual(names.count("collective"), 3)

    def test_experts_without_communication(self):
        mesh = jax.make_mesh(
            (1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1]
        )

        def body(x):
            experts = jnp.arange(len(x), dtype=np.int32)[:, None] % 2
            options = {"num_experts": 2, "float8_block": 4}
            rows, handle = ops.start(ops.moe_dispatch, x, experts, "i", **options).done()
            rows = ops.start(ops.moe_dispatch, x, handle).done()[0]
            return ops.start(ops.moe_combine, rows, None, handle).done()

        program = jax.shard_map(
            body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"), check_vma=False
        )
        x = np.random.default_rng(0).integers(0, 9, (6, 4)).astype(np.float32)
        harness.check_equal(jax.jit(program)(x), x)

    @parameterized.product(name=LINEAR, check_vma=(False, True))
    @pytest.mark.sample(5)
    def test_derivatives(self, name, check_vma):
        start, done = halves(name)
        whole = getattr(ops, name)
        options = ARGUMENTS[name]

        def split(v):
            future = start(v, "i", **options)
            w = future.tie(jnp.square(v))
            return jnp.sum(done(future, after=w) ** 2) + jnp.sum(w)

        def at_once(v):
            return jnp.sum(whole(v, "i", **options) ** 2) + jnp.sum(jnp.square(v))

        x = harness.values(4, 4)
        for transform in (
            jax.grad,
            lambda f: jax.grad(jax.checkpoint(f)),
            lambda f: lambda v: jax.jvp(f, (v,), (2 * v,))[1],
        ):
            expected = harness.run(transform(at_once), x, check_vma=check_vma)
            harness.check_equal(harness.run(transform(split), x, check_vma=check_vma), expected)

    def test_no_derivative_where_the_whole_has_none(self):
        for operation in (ops.pmax, lambda v, a: ops.start(ops.pmax, v, a).done()):
            with self.assertRaisesRegex(NotImplementedError, "(for 'pmax'|pmax has no deriv)"):
                harness.run(jax.grad(lambda v: jnp.sum(operation(v, "i"))), harness.values(4))  # noqa: B023

    def test_vmap(self):
        def split(v):
            future = ops.start(ops.all_gather, v, "i")
            return future.done(after=future.tie(2 * v))

        x = harness.values(3, 2)
        expected = harness.run(jax.vmap(lambda v: ops.all_gather(v, "i")), x)
        harness.check_equal(harness.run(jax.vmap(split), x), expected)

        def from_outside(v):
            future = ops.start(ops.psum, v, "i")
            return jax.vmap(lambda u: future.done(after=u) + u)(v)

        total = harness.fold(x)
        expected = np.stack([np.stack([total + u for u in part]) for part in x])
        harness.check_equal(harness.run(from_outside, x), expected)

        def as_argument(v):
            return jax.vmap(lambda future: future.done())(ops.start(ops.psum, v, "i"))

        with self.assertRaisesRegex(NotImplementedError, "under jax.vmap on GPUs"):
            harness.run(as_argument, x[:, :1])  # More would not fit the token: JAX's own error.

    def test_not_traced(self):
        future = lambda v: ops.start(ops.psum, {"v": v, "n": 1}, "i").done()  # noqa: E731
        out = harness.run(future, harness.values(2))
        np.testing.assert_array_equal(out["n"], [4] * 4)

    @parameterized.product(name=tuple(ARGUMENTS), check_vma=(False, True))
    @pytest.mark.sample(2)
    def test_lowering(self, name, check_vma):
        def body(v, h):
            future = halves(name)[0](v, "i", **ARGUMENTS[name])
            h = future.tie(h)
            return future.done(after=jnp.sin(h))

        x = jnp.zeros((16, 4), dtype_for(name)), jnp.zeros((4, 5))

        def program(v, h):
            y = body(v, h)
            same = check_vma and not jax.typeof(y).manual_axis_type.varying
            return jax.lax.pcast(y, "i", to="varying") if same else y

        started, tie, done = calls(lower(program, *x, check_vma=check_vma))
        self.assertEqual([started[0], tie[0], done[0]], ["start", "tie", "done"])
        self.assertEqual(tie[2][0], f"{started[1]}#1")
        # The operands of the done are the start's operand, the start's result, and the value of
        # `after`.
        self.assertEqual(done[2][:2], [started[2][0], f"{started[1]}#0"])
        self.assertLen(done[2], 3)
        self.assertIn("operand_index = 1", done[3])
        self.assertIn("has_side_effect = true", done[3])

        def layouts(call, key):
            return re.findall(r"dense<[^>]*>", re.search(rf"{key} = \[(.*?)\](?:,|}})", call[3])[1])

        results = layouts(started, "result_layouts")
        self.assertEqual(layouts(done, "result_layouts"), results[:1])
        self.assertEqual(layouts(done, "operand_layouts")[1], results[0])

    def test_inside_a_loop(self):
        def body(v):
            def step(carry, u):
                future = ops.start(ops.all_gather, u, "i", tiled=True)
                carry = future.tie(carry)
                carry = jnp.sin(carry)
                return carry, future.done(after=carry)

            return jax.lax.scan(step, v, jnp.ones((3, 2)) * v[0])

        text = lower(body, jnp.zeros(4))
        self.assertEqual([call[0] for call in calls(text)], ["start", "tie", "done"])

    @parameterized.named_parameters(
        ("carried", "carried"),
        ("captured", "captured"),
        ("branch", "branch"),
        ("tied", "tied"),
        ("function", "function"),
    )
    def test_crossing_a_boundary(self, where):
        ring = [(0, 1), (1, 2), (2, 3), (3, 0)]

        def carried(v):
            def step(future, _):
                return ops.start(ops.ppermute, future.done(), "i", ring), None

            first = ops.start(ops.ppermute, v, "i", ring)
            return jax.lax.scan(step, first, None, length=3)[0].done()

        def captured(v):
            future = ops.start(ops.psum, v, "i")
            return jax.lax.fori_loop(0, 3, lambda _, u: u + future.done(), v)

        def branch(v):
            future = ops.start(ops.psum, v, "i")
            return jax.lax.cond(v[0] > 0, lambda: future.done(), lambda: jnp.zeros_like(v))

        def tied(v):
            future = ops.start(ops.psum, v, "i")
            return jax.lax.fori_loop(0, 3, lambda _, u: future.tie(u), v), future.done()

        def function(v):
            return jax.jit(lambda future: future.done())(ops.start(ops.psum, v, "i"))

        with self.assertRaisesRegex(NotImplementedError, "crosses the boundary"):
            lower(locals()[where], jnp.zeros(4), check_vma=False)

    def test_what_needs_no_communication_is_complete(self):
        mesh = jax.make_mesh(
            (1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1]
        )

        def body(v, four_bits):
            alone = ops.start(ops.psum, v, "i")
            v = alone.tie(v)
            empty = ops.start(ops.all_gather, v[:0], "i")
            return alone.done(after=v), empty.done(), ops.start(ops.psum, four_bits, "i").done()

        program = jax.jit(
            jax.shard_map(
                body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"), check_vma=False
            )
        )
        arguments = jnp.ones(4), jnp.ones(4, jnp.int4)
        text = program.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
        self.assertEqual(calls(text), [])

        # A result of int4 arrives packed in a wider type and has to be unpacked. So the start makes
        # one blocking call and unpacks its result.
        text = lower(lambda v: ops.start(ops.ppermute, v, "i", [(0, 1)]).done(), arguments[1])
        self.assertEqual([call[0] for call in calls(text)], ["collective"])


class LoweringTest(parameterized.TestCase):
    def test_collectives_are_lowered_for_cuda(self):
        def body(v):
            v = ops.barrier(v, "i")
            return ops.all_gather(v, "i", tiled=True)

        text = lower(body, jnp.zeros((8, 2)))
        self.assertEqual([call[0] for call in calls(text)], ["barrier", "collective"])


if __name__ == "__main__":
    absltest.main()
