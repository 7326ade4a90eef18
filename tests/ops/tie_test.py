"""The primitive that orders a computation behind a start, under `jax.vmap`."""

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized

from jax_cxl._lowering.start_done import halves


class TieTest(parameterized.TestCase):
    @parameterized.parameters((None, 1), (0, 0))
    def test_only_a_batch_of_complete_futures_needs_no_order(self, token_axis, ties):
        def tie(token, x):
            return halves.tie_p.bind(token, x)

        mapped = jax.vmap(tie, in_axes=(token_axis, 0))
        program = jax.make_jaxpr(mapped)(jnp.zeros(3, jnp.uint32), jnp.ones((3, 4)))
        found = [eqn for eqn in program.eqns if eqn.primitive is halves.tie_p]
        self.assertLen(found, ties)
        self.assertEqual(program.out_avals[0].shape, (3, 4))


if __name__ == "__main__":
    absltest.main()
