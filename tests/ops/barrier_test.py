"""jax_cxl.barrier: the identity, which XLA neither drops nor merges nor hoists."""

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl


class BarrierTest(parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_identity(self, check_vma):
        x = {"a": harness.values(3), "b": harness.values(dtype=np.int8)}
        y = harness.run(
            lambda v: jax_cxl.barrier((v, 2.0, jnp.ones(3, jnp.int4)), "i")[0],
            x,
            check_vma=check_vma,
        )
        jax.tree.map(harness.check_equal, y, x)

    def test_types_stay(self):
        def body(v):
            same = jnp.zeros(3)
            out, kept = jax_cxl.barrier((v, same), "i")
            self.assertEqual(jax.typeof(out), jax.typeof(v))
            self.assertEqual(jax.typeof(kept), jax.typeof(same))
            return out

        harness.run(body, harness.values(2))

    @parameterized.parameters(False, True)
    def test_transformations(self, check_vma):
        x = harness.values(3, 2)

        def wait(v):
            return jax_cxl.barrier(v, "i")

        for function, expected in (
            (lambda v: jax.jvp(wait, (v,), (3 * v,))[1], 3 * x),
            (jax.grad(lambda v: jnp.sum(wait(v) ** 2)), 2 * x),
            (jax.vmap(wait, 1, 1), x),
            (jax.vmap(lambda v: jax_cxl.barrier(v, ("b", "i")), axis_name="b"), x),
            (jax.vmap(lambda v: jax_cxl.barrier(v, "b"), axis_name="b"), x),
            (jax.checkpoint(wait), x),
            (lambda v: jax.lax.fori_loop(0, 3, lambda _, c: wait(c), v), x),
            (lambda v: jax.lax.cond(v.sum() < 1e6, wait, lambda u: u, v), x),
        ):
            y = harness.run(function, x, check_vma=check_vma)
            harness.check_equal(y, expected)

    def test_is_one_call_that_stays(self):
        def body(v):
            a, b = jax_cxl.barrier((v, 2 * v), "i")
            return a + b + jax_cxl.barrier(v, "i") + jax_cxl.barrier(v, "i")

        lowered = harness.program(body, check_vma=True).lower(harness.values(2))
        self.assertEqual(lowered.as_text().count("@jax_cxl_barrier"), 3)
        compiled = lowered.compile().as_text()
        self.assertEqual(compiled.count('custom_call_target="jax_cxl_barrier"'), 3)

    def test_nothing_to_wait_with(self):
        y = harness.run(lambda v: (jax_cxl.barrier({}, "i"), v)[1], harness.values(2))
        harness.check_equal(y, harness.values(2))


if __name__ == "__main__":
    absltest.main()
