"""JAX's transformations and ways of compiling, over collectives."""

import os
import re
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import job
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized
from jax import lax

import jax_cxl

# Linear functions from float32[4, 3] to the same shape. The matrix maps the values of all ranks to
# their results.
OPERATIONS = {
    "psum": (lambda v: jax_cxl.psum(v, "i"), np.ones((4, 4))),
    "pmean": (lambda v: jax_cxl.pmean(v, "i"), np.full((4, 4), 0.25)),
    "ppermute": (
        lambda v: jax_cxl.ppermute(v, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]),
        np.roll(np.eye(4), 1, 0),
    ),
    "broadcast": (lambda v: jax_cxl.broadcast(v, "i", root=1), np.eye(4)[[1] * 4]),
    "pscan": (lambda v: jax_cxl.pscan(v, "i"), np.tril(np.ones((4, 4)))),
    "all_gather": (lambda v: jax_cxl.all_gather(v, "i").sum(0), np.ones((4, 4))),
    "psum_scatter": (
        lambda v: jax_cxl.all_gather(jax_cxl.psum_scatter(v, "i"), "i"),
        np.ones((4, 4)),
    ),
    "all_to_all": (
        lambda v: jax_cxl.all_to_all(jax_cxl.all_to_all(v, "i", 0, 0), "i", 0, 0),
        np.eye(4),
    ),
}


def apply(matrix, x):
    return np.einsum("rs,s...->r...", matrix, x).astype(np.float32)


def varying(v):
    """Returns `v`, cast to vary over "i" if it does not: loops and branches need a single type."""
    missing = {"i"} - jax.typeof(v).manual_axis_type.varying
    return lax.pcast(v, tuple(missing), to="varying") if missing else v


class TransformationsTest(parameterized.TestCase):
    def check(self, function, x, expected, check_vma=True):
        harness.check_equal(harness.run(function, x, check_vma=check_vma), expected)

    @parameterized.product(name=tuple(OPERATIONS), check_vma=(False, True))
    @pytest.mark.sample(3)
    def test_control_flow(self, name, check_vma):
        operation, matrix = OPERATIONS[name]
        x = harness.values(4, 3)

        def step(v):
            out = operation(v)
            return varying(out) if check_vma else out

        def in_while(v):
            return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, step(c[1])), (0, v))[1]

        self.check(in_while, x, apply(matrix @ matrix @ matrix, x), check_vma)

        def in_fori(v):
            return lax.fori_loop(0, 2, lambda _, u: step(u), v)

        self.check(in_fori, x, apply(matrix @ matrix, x), check_vma)

        def in_scan(v):
            return lax.scan(lambda c, k: (step(c), k * c), v, jnp.arange(1.0, 3.0))[1]

        self.check(in_scan, x, np.stack([x, 2 * apply(matrix, x)], 1), check_vma)

        def in_cond(v, wanted):
            # All ranks take the same branch.
            return lax.cond(lax.axis_size("i") == wanted, step, lambda u: u, v)

        self.check(lambda v: in_cond(v, 4), x, apply(matrix, x), check_vma)
        self.check(lambda v: in_cond(v, 5), x, x, check_vma)

        def in_switch(v):
            return lax.switch(
                jax_cxl.pmax(lax.axis_index("i"), "i") - 2, [lambda u: u, step, lambda u: -u], v
            )

        self.check(in_switch, x, apply(matrix, x), check_vma)

    @parameterized.product(name=tuple(OPERATIONS), check_vma=(False, True))
    @pytest.mark.sample(3)
    def test_derivatives(self, name, check_vma):
        operation, matrix = OPERATIONS[name]
        x = harness.values(4, 3)
        y = apply(matrix, x)

        def linearized(v):
            out, tangent = jax.linearize(operation, v)
            return tangent(3 * v) + 0 * out

        self.check(linearized, x, 3 * y, check_vma)

        def transposed(v):
            ct = operation(v)
            (back,) = jax.linear_transpose(operation, v)(ct)
            return back

        def pulled(v):
            out, pull = jax.vjp(operation, v)
            return pull(out)[0]

        expected = harness.run(pulled, x, check_vma=check_vma)
        self.check(transposed, x, expected, check_vma)

        # The derivative of a loop equals that of its steps one after the other, although the loop
        # stacks the residuals of its iterations.
        def step(c):
            out = operation(c)
            return (varying(out) if check_vma else out) * 0.5

        def looped(v):
            return jnp.sum(lax.scan(lambda c, _: (step(c), None), v, length=2)[0])

        expected = harness.run(jax.grad(lambda v: jnp.sum(step(step(v)))), x, check_vma=check_vma)
        self.check(jax.grad(looped), x, expected, check_vma)
        self.check(jax.grad(jax.checkpoint(looped)), x, expected, check_vma)

    @parameterized.parameters(False, True)
    def test_custom_vjp(self, check_vma):
        # Megatron's pair of functions: `enter` is the identity forward and a sum backward, `leave`
        # is a sum forward and the identity backward.
        @jax.custom_vjp
        def enter(v):
            return v

        enter.defvjp(lambda v: (v, None), lambda _, ct: (jax_cxl.psum(ct, "i"),))

        @jax.custom_vjp
        def leave(v):
            return jax_cxl.psum(v, "i")

        leave.defvjp(lambda v: (jax_cxl.psum(v, "i"), None), lambda _, ct: (ct,))

        def loss(v):
            return jnp.sum(leave(enter(v) ** 2))

        x = harness.values(3)
        self.check(jax.grad(loss), x, np.stack([harness.fold(2 * x)] * 4), check_vma=False)
        self.check(jax.vmap(leave), x, np.stack([harness.fold(x)] * 4), check_vma)

    def test_custom_jvp(self):
        @jax.custom_jvp
        def log_sum(v):
            return jnp.log(jax_cxl.psum(jnp.exp(v), "i"))

        @log_sum.defjvp
        def _(primals, tangents):
            (v,), (dv,) = primals, tangents
            out = log_sum(v)
            return out, jax_cxl.psum(jnp.exp(v - out) * dv, "i")

        x = harness.values(3)
        weights = np.exp(x) / np.exp(x).sum(0)
        y = harness.run(lambda v: jax.jvp(log_sum, (v,), (v,))[1], x)
        np.testing.assert_allclose(y, np.stack([(weights * x).sum(0)] * 4), rtol=1e-5)


class CompilationTest(parameterized.TestCase):
    def program(self, function, **options):
        spec = jax.P("i")
        mapped = jax.shard_map(
            function, mesh=harness.mesh(), in_specs=spec, out_specs=spec, check_vma=False
        )
        return jax.jit(mapped, **options)

    def test_nested_jit(self):
        @jax.jit
        def inner(v):
            return jax_cxl.psum(v, "i")

        @jax.jit
        def middle(v):
            return inner(v) + inner(2 * v)

        x = harness.values(1000)
        y = harness.run(lambda v: middle(v) * inner(v), x)
        total = harness.fold(x)
        harness.check_equal(y, np.stack([3 * total * total] * 4))

    def test_donated_inputs(self):
        # XLA may write the sum over the donated operand, or refuse the donation. Both are right as
        # long as nothing is read after it was overwritten.
        sharding = jax.NamedSharding(harness.mesh(), jax.P("i"))
        x = harness.uneven_values(3000)
        step = self.program(lambda v: jax_cxl.psum(v, "i") * 0.25, donate_argnums=0)
        state = jax.device_put(x.reshape(-1), sharding)
        expected = x
        for _ in range(4):
            donated, state = state, step(state)
            self.assertTrue(donated.is_deleted())
            expected = np.stack([harness.fold(expected) * np.float32(0.25)] * 4)
        harness.check_equal(np.asarray(state), expected.reshape(-1))

        table = np.zeros((4, 4, 4), np.int32)
        ragged = self.program(
            lambda o, u, t: jax_cxl.ragged_all_to_all(o, u, *t[0], axis_name="i"),
            donate_argnums=1,
        )
        output = jax.device_put(np.arange(40.0, dtype=np.float32), sharding)
        y = ragged(np.ones(20, np.float32), output, table)
        np.testing.assert_array_equal(y, np.arange(40.0))
        self.assertTrue(output.is_deleted())

    def test_ahead_of_time(self):
        x = harness.uneven_values(50).reshape(-1)
        step = self.program(lambda v: jax_cxl.psum(v, "i"))
        shapes = jax.eval_shape(step, x)
        self.assertEqual((shapes.shape, shapes.dtype), (x.shape, x.dtype))
        traced = step.trace(x)
        self.assertIn("psum", str(traced.jaxpr))
        compiled = traced.lower().compile()
        before = jax_cxl.stats().calls
        for _ in range(2):
            y = np.asarray(compiled(x))
            harness.check_equal(y.reshape(4, -1), np.stack([harness.fold(x.reshape(4, -1))] * 4))
        self.assertEqual(jax_cxl.stats().calls - before, 2 * harness.RANKS)
        # A lowering can be compiled more than once.
        lowered = step.lower(x)
        first, second = lowered.compile(), lowered.compile()
        harness.check_equal(np.asarray(first(x)), np.asarray(second(x)))

    def test_eval_shape_needs_no_devices(self):
        mesh = jax.sharding.AbstractMesh((64,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        gathered = jax.eval_shape(
            jax.shard_map(
                lambda v: jax_cxl.all_gather(v, "i", tiled=True),
                mesh=mesh,
                in_specs=jax.P("i"),
                out_specs=jax.P("i"),
            ),
            jax.ShapeDtypeStruct((128, 3), jnp.bfloat16),
        )
        self.assertEqual((gathered.shape, gathered.dtype), ((128 * 64, 3), jnp.bfloat16))

    def test_without_jit(self):
        x = harness.values(4)
        mapped = jax.shard_map(
            lambda v: jax_cxl.psum(v, "i"),
            mesh=harness.mesh(),
            in_specs=jax.P("i"),
            out_specs=jax.P(),
        )
        harness.check_equal(np.asarray(mapped(x.reshape(-1))), harness.fold(x))

    def test_persistent_cache(self):
        program = job.PROGRAMS / "cached.py"
        directory = self.enter_context(tempfile.TemporaryDirectory())

        def run():
            done = subprocess.run(
                [sys.executable, program, directory],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True,
                text=True,
                timeout=200,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            return [int(n) for n in re.search(r"(\d+) hits, (\d+) misses", done.stdout).groups()]

        hits, misses = run()
        self.assertEqual(hits, 0)
        self.assertGreater(misses, 0)
        self.assertEqual(run(), [misses, 0])  # It loads them all, and computes the same.


if __name__ == "__main__":
    absltest.main()
