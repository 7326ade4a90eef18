"""`from jax_cxl import lax` is jax.lax with our collectives in it."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import lax

COLLECTIVES = (
    "all_gather",
    "all_to_all",
    "pbroadcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "pshuffle",
    "psum",
    "psum_scatter",
    "pswapaxes",
    "ragged_all_to_all",
)


class LaxModuleTest(parameterized.TestCase):
    @parameterized.parameters(*COLLECTIVES)
    def test_collectives_are_ours_with_the_same_arguments(self, name):
        ours, theirs = getattr(lax, name), getattr(jax.lax, name)
        self.assertIs(ours, getattr(jax_cxl, name))
        self.assertIsNot(ours, theirs)
        described = [
            [
                (p.name, p.kind, p.default)
                for p in inspect.signature(f).parameters.values()
                if p.name != "levels"  # jax.lax has no such choice.
            ]
            for f in (ours, theirs)
        ]
        self.assertEqual(*described)

    def test_everything_else_is_jax(self):
        names = set(dir(jax.lax)) - {*COLLECTIVES, "psend", "precv", "pargmax", "pargmin"}
        for name in names:
            if not name.startswith("_"):
                self.assertIn(name, dir(lax))
        for name in ("scan", "broadcast", "reduce", "gather", "scatter", "cond", "axis_index"):
            self.assertIs(getattr(lax, name), getattr(jax.lax, name))
        self.assertIs(jax_cxl.lax, lax)
        with self.assertRaisesRegex(AttributeError, "jax_cxl.lax.*no_such_thing"):
            _ = lax.no_such_thing

    def test_imports(self):
        namespace = {}
        exec("from jax_cxl.lax import psum, scan, fori_loop", namespace)
        self.assertIs(namespace["psum"], jax_cxl.psum)
        self.assertIs(namespace["fori_loop"], jax.lax.fori_loop)

    def test_a_program(self):
        def body(x):
            total, _ = lax.scan(lambda c, v: (c + lax.psum(v, "i"), None), jnp.zeros(3), x)
            return lax.select(total > 0, total, -total) * lax.axis_size("i")

        x = harness.values(5, 3)
        program = harness.program(body, check_vma=True)
        self.assertIn("jax_cxl_collective", program.lower(x).as_text())
        harness.check_equal(np.asarray(program(x)), np.stack([x.sum((0, 1)) * 4] * 4))


if __name__ == "__main__":
    absltest.main()
