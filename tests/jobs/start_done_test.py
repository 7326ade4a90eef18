"""Collectives in two halves: the start, and the done that returns the result."""

import importlib
import tempfile

import jax
import jax.numpy as jnp
import job
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized
from halves import ARGUMENTS, dtype_for, halves

import jax_cxl
from jax_cxl.ops import public as ops


class StartDoneTest(parameterized.TestCase):
    def test_every_operation_is_here(self):
        start_done = importlib.import_module("jax_cxl.ops.start_done")
        # tests/moe starts the operations for experts, and tests/gpu those that move rows.
        others = {"ragged_all_to_all", "take_rows", "moe_dispatch", "moe_combine"}
        names = {operation.__name__ for operation in start_done.startable()}
        self.assertEqual(names, {*ARGUMENTS, *others})

    @parameterized.parameters(*ARGUMENTS)
    def test_same_as_the_whole(self, name):
        start, done = halves(name)
        options = ARGUMENTS[name]
        whole = getattr(ops, name)

        def by_function(v):
            future = start({"a": v, "b": [2 * v]}, "i", **options)
            return done(future)

        def by_method(v):
            return start({"a": v, "b": [2 * v]}, "i", **options).done()

        x = harness.values(4, 4, dtype=dtype_for(name))
        expected = harness.run(lambda v: whole({"a": v, "b": [2 * v]}, "i", **options), x)
        for function in (by_function, by_method):
            actual = harness.run(function, x)
            jax.tree.map(harness.check_equal, actual, expected)

    @parameterized.parameters("all_gather", "ppermute", "psum_scatter")
    def test_derivatives(self, name):
        start, done = halves(name)
        whole = getattr(ops, name)
        options = ARGUMENTS[name]

        def loss(operation):
            return lambda v: jnp.sum(operation(v) ** 2)

        def split(v):
            return done(start(v, "i", **options))

        x = harness.values(4, 4)
        for transform in (jax.grad, lambda f: jax.checkpoint(jax.grad(f))):
            expected = harness.run(transform(loss(lambda v: whole(v, "i", **options))), x)
            harness.check_equal(harness.run(transform(loss(split)), x), expected)

    def test_futures_are_values(self):
        # The collective is started in one iteration and used in the next, as in a pipeline.
        def body(v):
            def step(future, u):
                arrived = future.done()
                return ops.start(
                    ops.ppermute, arrived + u, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]
                ), arrived

            ring = ops.start(ops.ppermute, v, "i", [(0, 1), (1, 2), (2, 3), (3, 0)])
            last, seen = jax.lax.scan(step, ring, jnp.ones((3, 2)))
            return last.done(), seen

        x = harness.values(2)
        last, seen = harness.run(body, x)
        harness.check_equal(last, x + 3)
        for t in range(3):
            harness.check_equal(seen[:, t], np.roll(x, t + 1, 0) + t)
        batched = jax.vmap(lambda u: ops.start(ops.psum, u, "i"))
        harness.check_equal(
            harness.run(lambda v: batched(v).done(), harness.values(3, 2)),
            np.stack([harness.fold(harness.values(3, 2))] * 4),
        )

    def test_what_cannot_be_started(self):
        for wrong in (jnp.sum, jax.lax.psum, jax_cxl.barrier, "psum"):
            with self.assertRaisesRegex(TypeError, "cannot start .* all_gather, all_to_all"):
                ops.start(wrong, np.ones(4), "i")

    def test_overlaps_with_computation(self):
        signal = self.enter_context(tempfile.TemporaryDirectory()) + "/computed"
        done = job.run("overlap.py", signal, processes=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        computes = done.stdout.index("process 0 computes while its collective is under way")
        self.assertLess(computes, done.stdout.index("process 1 joins"), done.stdout)
        self.assertEqual(done.stdout.count("right"), 2)


class SendReceiveTest(parameterized.TestCase):
    def exchange(self, v, perm):
        token = ops.psend(v, "i", perm)
        token, v = jax.lax.optimization_barrier((token, v))
        return ops.precv(token, jax.ShapeDtypeStruct(v.shape, v.dtype), "i", perm)

    @parameterized.product(perm=([(0, 1)], [(0, 3), (2, 2)], []), check_vma=(False, True))
    def test_transformations(self, perm, check_vma):
        def oracle(x):
            y = np.zeros_like(x)
            for source, destination in perm:
                y[destination] = x[source]
            return y

        harness.check_linear(lambda v: self.exchange(v, perm), oracle, 2, 3, check_vma=check_vma)

    def test_there_and_back(self):
        def body(v):
            shape = jax.ShapeDtypeStruct(v.shape, v.dtype)
            there, back = [(0, 1), (1, 2)], [(1, 0), (2, 1)]
            tokens = ops.psend({"a": v}, "i", there), ops.psend(-v, "i", back)
            return (
                ops.precv(tokens[1], shape, "i", back),
                ops.precv(tokens[0]["a"], shape, "i", there),
            )

        x = harness.values(3)
        back, there = harness.run(body, x)
        zeros = np.zeros_like(x[0])
        harness.check_equal(there, np.stack([zeros, x[0], x[1], zeros]))
        np.testing.assert_array_equal(back, np.stack([-x[1], -x[2], zeros, zeros]))

    @parameterized.parameters(
        (TypeError, "takes the token", "token"),
        (ValueError, "with other pairs", "perm"),
        (ValueError, "out_shape", "shape"),
    )
    def test_mismatches(self, error, message, what):
        def body(v):
            token = ops.psend(v, "i", [(0, 1)])
            return ops.precv(
                v if what == "token" else token,
                jax.ShapeDtypeStruct((3 if what == "shape" else 2,), v.dtype),
                "i",
                [(1, 0)] if what == "perm" else [(0, 1)],
            )

        with self.assertRaisesRegex(error, message):
            harness.run(body, harness.values(2))


if __name__ == "__main__":
    absltest.main()
