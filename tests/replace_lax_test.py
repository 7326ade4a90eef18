"""jax_cxl.replace_lax: unmodified code communicates through the pool."""

import functools
import importlib
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_harness as harness
import optax
from absl.testing import absltest, parameterized
from jax import lax
from jax.lax import psum as psum_imported_before  # As libraries do.

import jax_cxl

OURS = "jax_cxl_collective"
THEIRS = r"stablehlo.(all_|reduce_scatter|collective_)"

GROUPS = harness.GROUPS
PERM = [(0, 1), (1, 2), (3, 0)]

# What each does to float32[4, 8] on each rank.
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
    return harness.program(function, check_vma=check_vma, on=on).lower(x).as_text()


class CallsTest(parameterized.TestCase):
    @parameterized.product(name=tuple(CALLS), check_vma=(False, True))
    def test_same_values_through_the_pool(self, name, check_vma):
        check_vma &= name != "groups"  # jax.lax.psum takes none with check_vma.
        function = CALLS[name]
        x = harness.values(4, 8)
        expected = harness.run(function, x, check_vma=check_vma)
        with jax_cxl.replace_lax("i"):
            actual = harness.run(function, x, check_vma=check_vma)
            lowered = text(function, x, check_vma=check_vma)
        jax.tree.map(harness.check_equal, actual, expected)
        self.assertNotRegex(lowered, THEIRS)
        if name not in ("axis_index", "constants"):
            self.assertIn(OURS, lowered)

    @parameterized.product(
        name=("psum", "pmean", "all_gather", "psum_scatter_tiled", "all_to_all_tiled", "ppermute"),
        check_vma=(False, True),
    )
    def test_same_derivatives_through_the_pool(self, name, check_vma):
        def loss(u):
            return jnp.sum(CALLS[name](u) ** 2)

        def batched(v):
            return jax.vmap(jax.grad(loss))(jnp.stack([v, 2 * v]))

        x = harness.values(4, 8)
        for function in (jax.grad(loss), jax.checkpoint(jax.grad(loss)), batched):
            expected = harness.run(function, x, check_vma=check_vma)
            with jax_cxl.replace_lax("i"):
                actual = harness.run(function, x, check_vma=check_vma)
                self.assertNotRegex(text(function, x, check_vma=check_vma), THEIRS)
            harness.check_equal(actual, expected)

    @parameterized.parameters(False, True)
    def test_ragged_and_broadcast(self, check_vma):
        table = np.array([[[0, 1], [1, 2], [0, 0], [1, 1]], [[0, 1], [1, 1], [1, 2], [2, 1]]])
        on = harness.mesh((2,))

        def ragged(a):
            return lax.ragged_all_to_all(a[0], a[1], *a[2], axis_name="i")

        arguments = (np.array([[1, 2, 2], [3, 4, 0]]), np.zeros((2, 4), int), table)
        x = harness.values(3)
        with jax_cxl.replace_lax():
            y = harness.run(ragged, arguments, on=on, check_vma=check_vma)
            np.testing.assert_array_equal(y, [[1, 3, 0, 0], [2, 2, 4, 0]])
            # JAX has no pbroadcast for CPU.
            y = harness.run(lambda v: lax.pbroadcast(v, "i", 2), x, check_vma=check_vma)
        harness.check_equal(y, np.stack([x[2]] * 4))
        with self.assertRaisesRegex(NotImplementedError, "no pbroadcast on cpu"):
            text(lambda v: lax.pbroadcast(v, "i", 2), x, check_vma=check_vma)

    def test_all_gather_invariant(self):
        def body(x):
            return lax.all_gather(x, "i", tiled=True, to="invarying")

        gather = jax.shard_map(body, mesh=harness.mesh(), in_specs=jax.P("i"), out_specs=jax.P())
        with jax_cxl.replace_lax("i"):
            y, pull = jax.vjp(jax.jit(gather), jnp.arange(8.0))
            (ct,) = pull(y)
            self.assertIn(OURS, jax.jit(gather).lower(jnp.arange(8.0)).as_text())
        np.testing.assert_array_equal(y, np.arange(8.0))
        np.testing.assert_array_equal(ct, np.arange(8.0))

    def test_positional_and_vmapped_axes(self):
        x = harness.values(3, 5)
        for function in (
            jax.vmap(lambda v: lax.psum(v, ("i", "b")), axis_name="b"),
            jax.vmap(lambda v: lax.psum(v, "i"), in_axes=1, out_axes=1),
            jax.vmap(lambda v: lax.psum(v, "b"), axis_name="b"),
        ):
            # With check_vma jax.lax does not sum over both kinds of axes at once.
            expected = harness.run(function, x, check_vma=False)
            with jax_cxl.replace_lax():
                harness.check_equal(harness.run(function, x, check_vma=False), expected)

    @parameterized.parameters(ml_dtypes.bfloat16, np.float16, np.int8, ml_dtypes.int4)
    def test_sums_have_the_bits_of_jax_cxl(self, dtype):
        x = harness.uneven_values(300).astype(dtype)
        with jax_cxl.replace_lax():
            actual = harness.run(lambda v: lax.psum(v, "i"), x)
        harness.check_equal(actual, harness.run(lambda v: jax_cxl.psum(v, "i"), x))


class SettingTest(parameterized.TestCase):
    def test_axes_that_are_not_named_stay_with_jax(self):
        on = harness.mesh((2, 2), ("i", "j"))
        x = harness.values(4)

        def lowered(axes, over):
            with jax_cxl.replace_lax(axes):
                return text(lambda v: lax.psum(v, over), x, on=on)

        self.assertIn(OURS, lowered("i", "i"))
        self.assertNotIn(OURS, lowered("i", "j"))
        self.assertNotIn(OURS, lowered("i", ("i", "j")))
        self.assertIn(OURS, lowered(("i", "j"), ("i", "j")))
        self.assertIn(OURS, lowered(None, ("i", "j")))
        self.assertNotIn(OURS, lowered((), "i"))

        # Both kinds in one program.
        def body(v):
            return lax.psum(lax.psum(v, "i"), "j")

        with jax_cxl.replace_lax("i"):
            mixed = text(body, x, on=on)
            self.assertEqual(mixed.count(OURS), 1)
            self.assertRegex(mixed, THEIRS)
            y = harness.run(body, x, on=on)
        harness.check_equal(y, np.stack([harness.fold(x)] * 4))

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
            with jax_cxl.replace_lax("i"):
                self.assertEqual(calls(), harness.RANKS)
                with jax_cxl.replace_lax(()):
                    self.assertEqual(calls(), 0)
                self.assertEqual(calls(), harness.RANKS)
            with jax_cxl.replace_lax("j"):
                self.assertEqual(calls(), 0)
        self.assertEqual(calls(), 0)

        @jax_cxl.replace_lax("i")
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

        with jax_cxl.replace_lax():
            self.assertEqual((uses_pool(), in_thread()), (True, False))
        switch = jax_cxl.replace_lax().start()
        try:
            self.assertEqual((uses_pool(), in_thread()), (True, True))
            with jax_cxl.replace_lax(()):
                self.assertEqual((uses_pool(), in_thread()), (False, True))
            with self.assertRaisesRegex(RuntimeError, "called before"):
                switch.start()
        finally:
            switch.stop()
        self.assertEqual((uses_pool(), in_thread()), (False, False))
        with self.assertRaisesRegex(RuntimeError, "without start"):
            switch.stop()

    def test_what_jax_cxl_does_not_support(self):
        x = harness.values(4)
        with jax_cxl.replace_lax():
            with self.assertRaisesRegex(NotImplementedError, "must all have the same size"):
                groups = [[0], [1, 2, 3]]
                text(lambda v: lax.psum(v, "i", axis_index_groups=groups), x, check_vma=False)
            with self.assertRaisesRegex(TypeError, "complex numbers have no order"):
                text(lambda v: lax.pmax(v.astype(np.complex64), "i"), x)
            with self.assertRaisesRegex(NotImplementedError, r"\['j'\] are not. Leave"):
                jax.jit(
                    jax.shard_map(
                        lambda v: lax.psum(v, "i"),
                        mesh=harness.mesh((2, 2), ("i", "j")),
                        in_specs=jax.P("i"),
                        out_specs=jax.P(),
                        axis_names={"i"},
                    )
                ).lower(np.ones(4, np.float32))


class ThirdPartyTest(parameterized.TestCase):
    """Code of others, which knows nothing of jax_cxl."""

    def compare(self, function, arguments, in_specs, out_specs, least):
        """Runs a training step with and without the pool."""
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
        with jax_cxl.replace_lax("i"):
            lowered = program.lower(*arguments).as_text()
            before = jax_cxl.stats().calls
            actual = jax.block_until_ready(program(*arguments))
            self.assertGreaterEqual(jax_cxl.stats().calls - before, least * harness.RANKS)
        self.assertNotRegex(lowered, THEIRS)
        self.assertGreaterEqual(lowered.count(OURS), least)
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
            least=2,
        )

    def test_flax_batch_norm(self):
        linen = self.needs("flax.linen")

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

        self.compare(step, (variables, x), (jax.P(), jax.P("i")), jax.P(), least=3)

    def test_flax_nnx_batch_norm(self):
        nnx = self.needs("flax.nnx")
        norm = nnx.BatchNorm(3, axis_name="i", rngs=nnx.Rngs(0))
        graph, state = nnx.split(norm)

        def step(state, x):
            norm = nnx.merge(graph, state)
            y = norm(x)
            return y, nnx.state(norm)

        x = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
        self.compare(step, (state, x), (jax.P(), jax.P("i")), (jax.P("i"), jax.P()), least=1)

    def needs(self, name):
        try:
            return importlib.import_module(name)
        except ImportError:
            self.skipTest(f"{name} is not installed")


if __name__ == "__main__":
    absltest.main()
