"""jax_cxl.replace_collectives: unmodified code communicates through the pool."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
import optax
import pytest
from absl.testing import absltest, parameterized
from flax import linen, nnx
from jax import lax
from jax.lax import psum as psum_imported_before  # As libraries do.

import jax_cxl

OURS = 'custom_call_target="jax_cxl_'
THEIRS = r" (all-|reduce-scatter|ragged-|collective-)[a-z-]*\("

# The ranks of these tests are devices of one process.
replace = functools.partial(jax_cxl.replace_collectives, local=True, strict=True)

GROUPS = harness.GROUPS
PERM = [(0, 1), (1, 2), (3, 0)]

# Functions that call jax.lax on the float32[4, 8] of each rank.
CALLS = {
    "psum": lambda v: lax.psum(v, "i"),
    "psum_imported_before": lambda v: psum_imported_before(v, "i"),
    "pmean": lambda v: lax.pmean(v, "i"),
    "pmax": lambda v: lax.pmax(v, "i"),
    "pmin": lambda v: lax.pmin(v, "i"),
    "all_gather": lambda v: lax.all_gather(v, "i", axis=1),
    "all_gather_tiled": lambda v: lax.all_gather(v, "i", axis=1, tiled=True),
    "psum_scatter": lambda v: lax.psum_scatter(v, "i"),
    "psum_scatter_tiled": lambda v: lax.psum_scatter(v, "i", scatter_dimension=1, tiled=True),
    "all_to_all": lambda v: lax.all_to_all(v, "i", 0, 1),
    "all_to_all_tiled": lambda v: lax.all_to_all(v, "i", 1, 0, tiled=True),
    "all_to_all_same": lambda v: lax.all_to_all(v, "i", 1, 1, tiled=True),
    "ppermute": lambda v: lax.ppermute(v, "i", PERM),
    "pshuffle": lambda v: lax.pshuffle(v, "i", [2, 0, 3, 1]),
    "pswapaxes": lambda v: lax.pswapaxes(v, "i", 0),
    "axis_index": lambda v: v + lax.axis_index("i"),
    "groups": lambda v: lax.psum(v, "i", axis_index_groups=GROUPS),
    "gather_groups": lambda v: lax.all_gather(v, "i", axis_index_groups=GROUPS),
    "several": lambda v: {"a": lax.psum(v, "i"), "b": [lax.pmax(v, "i")]},
    "constants": lambda v: v * lax.psum(1, "i"),
}


def text(function, x, *, check_vma=True, on=None):
    """Compiles a function of each rank's value; returns the text of XLA's module."""
    return harness.program(function, check_vma=check_vma, on=on).lower(x).compile().as_text()


class CallsTest(parameterized.TestCase):
    @parameterized.product(name=tuple(CALLS), check_vma=(False, True))
    @pytest.mark.sample(3)
    def test_same_values_through_the_pool(self, name, check_vma):
        check_vma &= name != "groups"  # jax.lax.psum takes none with check_vma.
        function = CALLS[name]
        x = harness.values(4, 8)
        expected = harness.run(function, x, check_vma=check_vma)
        with replace():
            actual = harness.run(function, x, check_vma=check_vma)
            module = text(function, x, check_vma=check_vma)
        jax.tree.map(harness.check_equal, actual, expected)
        self.assertNotRegex(module, THEIRS)
        if name not in ("axis_index", "constants"):
            self.assertIn(OURS, module)

    def test_programs_that_differ_only_in_names(self):
        # JAX calls the sum psum in one program and psum_invariant in the other. It counts their
        # launches apart.
        x = harness.values(4, 9)
        with replace():
            for check_vma in (False, True, False):
                actual = harness.run(CALLS["psum"], x, check_vma=check_vma)
                harness.check_equal(actual, np.broadcast_to(x.sum(0), x.shape))

    @parameterized.product(
        name=("psum", "pmean", "all_gather", "psum_scatter_tiled", "all_to_all_tiled", "ppermute"),
        check_vma=(False, True),
    )
    @pytest.mark.sample(3)
    def test_same_derivatives_through_the_pool(self, name, check_vma):
        def loss(u):
            return jnp.sum(CALLS[name](u) ** 2)

        def batched(v):
            return jax.vmap(jax.grad(loss))(jnp.stack([v, 2 * v]))

        x = harness.values(4, 8)
        for function in (jax.grad(loss), jax.checkpoint(jax.grad(loss)), batched):
            expected = harness.run(function, x, check_vma=check_vma)
            with replace():
                actual = harness.run(function, x, check_vma=check_vma)
                self.assertNotRegex(text(function, x, check_vma=check_vma), THEIRS)
            harness.check_equal(actual, expected)

    @parameterized.parameters(False, True)
    def test_ragged_all_to_all(self, check_vma):
        table = np.array([[[0, 1], [1, 2], [0, 0], [1, 1]], [[0, 1], [1, 1], [1, 2], [2, 1]]])
        on = harness.mesh((2,))

        def ragged(a):
            return lax.ragged_all_to_all(a[0], a[1], *a[2], axis_name="i")

        arguments = (np.array([[1, 2, 2], [3, 4, 0]]), np.zeros((2, 4), int), table)
        with replace():
            y = harness.run(ragged, arguments, on=on, check_vma=check_vma)
            np.testing.assert_array_equal(y, [[1, 3, 0, 0], [2, 2, 4, 0]])

    def test_all_gather_invariant(self):
        def body(x):
            return lax.all_gather(x, "i", tiled=True, to="invarying")

        gather = jax.shard_map(body, mesh=harness.mesh(), in_specs=jax.P("i"), out_specs=jax.P())
        with replace():
            y, pull = jax.vjp(jax.jit(gather), jnp.arange(8.0))
            (ct,) = pull(y)
            self.assertIn(OURS, jax.jit(gather).lower(jnp.arange(8.0)).compile().as_text())
        np.testing.assert_array_equal(y, np.arange(8.0))
        np.testing.assert_array_equal(ct, np.arange(8.0))

    def test_positional_and_vmapped_axes(self):
        x = harness.values(3, 5)
        for function in (
            jax.vmap(lambda v: lax.psum(v, ("i", "b")), axis_name="b"),
            jax.vmap(lambda v: lax.psum(v, "i"), in_axes=1, out_axes=1),
            jax.vmap(lambda v: lax.psum(v, "b"), axis_name="b"),
        ):
            # With check_vma, jax.lax cannot sum over an axis of a mesh and an axis of vmap in one
            # call.
            expected = harness.run(function, x, check_vma=False)
            with replace():
                harness.check_equal(harness.run(function, x, check_vma=False), expected)


class SettingTest(parameterized.TestCase):
    def test_groups_within_a_process_stay_with_xla(self):
        x = harness.values(4)
        with jax_cxl.replace_collectives(strict=True):
            module = text(lambda v: lax.psum(v, "i"), x)
        self.assertNotIn(OURS, module)
        self.assertRegex(module, THEIRS)

    def test_no_program_serves_another_setting(self):
        x = harness.values(3)
        step = harness.program(lambda v: lax.psum(v, "i"), check_vma=True)

        def calls():
            before = jax_cxl.stats().calls
            harness.check_equal(np.asarray(step(x)), np.stack([harness.fold(x)] * 4))
            return jax_cxl.stats().calls - before

        jax_cxl.initialize()
        for _ in range(2):
            self.assertEqual(calls(), 0)
            with replace():
                self.assertEqual(calls(), harness.RANKS)
                with jax_cxl.replace_collectives():
                    self.assertEqual(calls(), 0)
                self.assertEqual(calls(), harness.RANKS)
        self.assertEqual(calls(), 0)

        @replace()
        def decorated():
            return calls()

        self.assertEqual(decorated(), harness.RANKS)

    def test_threads(self):
        x = harness.values(3)

        def uses_pool():
            return OURS in text(lambda v: lax.psum(v, "i"), x)

        def in_thread():
            found = []
            thread = threading.Thread(target=lambda: found.append(uses_pool()))
            thread.start()
            thread.join()
            return found[0]

        with replace():
            self.assertEqual((uses_pool(), in_thread()), (True, True))
        switch = replace().start()
        try:
            self.assertEqual((uses_pool(), in_thread()), (True, True))
            with jax_cxl.replace_collectives():
                self.assertEqual((uses_pool(), in_thread()), (False, False))
        finally:
            switch.stop()
        self.assertEqual((uses_pool(), in_thread()), (False, False))
        with self.assertRaisesRegex(RuntimeError, "without start"):
            switch.stop()

    def test_what_stays_with_xla(self):
        groups = [[0], [1, 2, 3]]
        x = harness.values(4)

        def uneven(v):
            return lax.psum(v, "i", axis_index_groups=groups)

        with (
            replace(),
            self.assertRaisesRegex(
                jax_cxl.InvalidCollectiveError,
                r"all-reduce in jit_\w+ at .*replace_collectives_test.py:\d+ \(.*uneven\)"
                r".*groups have different sizes",
            ),
        ):
            text(uneven, x, check_vma=False)
        before = jax_cxl.stats()
        with (
            jax_cxl.replace_collectives(local=True),
            self.assertLogs("jax_cxl", "WARNING") as logs,
        ):
            y = harness.run(uneven, x, check_vma=False)
            # The warning comes only once.
            harness.run(lambda v: uneven(v) * 2, x, check_vma=False)
        self.assertLen([line for line in logs.output if "uneven" in line], 1)
        harness.check_equal(y, np.stack([x[0]] + [harness.fold(x[1:])] * 3))
        self.assertEqual(jax_cxl.stats().collectives_left, before.collectives_left + 2)
        self.assertEqual(jax_cxl.stats().collectives_taken, before.collectives_taken)


class ThirdPartyTest(parameterized.TestCase):
    """Libraries that do not know jax_cxl."""

    def compare(self, function, arguments, in_specs, out_specs):
        """Runs a training step with and without the pool, and compares the results."""
        program = jax.jit(
            jax.shard_map(
                function,
                mesh=harness.mesh(),
                in_specs=in_specs,
                out_specs=out_specs,
            )
        )
        expected = program(*arguments)
        jax_cxl.initialize()
        with replace():
            compiled = program.lower(*arguments).compile().as_text()
            before = jax_cxl.stats().calls
            actual = jax.block_until_ready(program(*arguments))
            self.assertGreaterEqual(jax_cxl.stats().calls - before, harness.RANKS)
        self.assertNotRegex(compiled, THEIRS)
        self.assertIn(OURS, compiled)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), actual, expected
        )

    def test_optax_training_step(self):
        optimizer = optax.contrib.sam(
            optax.adam(1e-2),
            optax.chain(optax.contrib.normalize(), optax.sgd(0.1)),
            sync_period=2,
            opaque_mode=True,
            batch_axis_name="i",
        )
        parameters = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}

        def step(parameters, state, x, y):
            def loss(p):
                return jnp.mean((jnp.tanh(x @ p["w"]) + p["b"] - y) ** 2)

            def gradient(p, _):
                return jax.grad(lambda q: lax.pmean(loss(q), "i"))(p)

            updates, state = optimizer.update(
                gradient(parameters, 0), state, parameters, grad_fn=gradient
            )
            return optax.apply_updates(parameters, updates), lax.pmean(loss(parameters), "i")

        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((8, 3)), rng.standard_normal((8, 2))
        self.compare(
            step,
            (parameters, optimizer.init(parameters), x.astype(np.float32), y.astype(np.float32)),
            (jax.P(), jax.P(), jax.P("i"), jax.P("i")),
            (jax.P(), jax.P()),
        )

    def test_flax_batch_norm(self):

        class Net(linen.Module):
            @linen.compact
            def __call__(self, x):
                x = linen.Dense(4)(x)
                x = linen.BatchNorm(use_running_average=False, axis_name="i")(x)
                return linen.Dense(1)(linen.relu(x))

        net = Net()
        x = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
        variables = net.init(jax.random.key(0), x[:2])

        def step(variables, x):
            def loss(parameters):
                out, changed = net.apply(
                    {**variables, "params": parameters}, x, mutable=["batch_stats"]
                )
                return lax.pmean(jnp.mean(out**2), "i"), changed

            return jax.value_and_grad(loss, has_aux=True)(variables["params"])

        self.compare(step, (variables, x), (jax.P(), jax.P("i")), jax.P())

    def test_flax_nnx_batch_norm(self):
        norm = nnx.BatchNorm(3, axis_name="i", rngs=nnx.Rngs(0))
        graph, state = nnx.split(norm)

        def step(state, x):
            norm = nnx.merge(graph, state)
            y = norm(x)
            return y, nnx.state(norm)

        x = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
        self.compare(step, (state, x), (jax.P(), jax.P("i")), (jax.P("i"), jax.P()))


if __name__ == "__main__":
    absltest.main()
