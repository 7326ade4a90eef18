"""Residuals of a forward pass that wait for the backward pass in a store.

`python tests/tier/residuals_test.py` runs the tests on GPUs, if there are any.
"""

import functools
import gc
import os
import re
import tempfile
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.ad_checkpoint import checkpoint_name

import jax_cxl
from jax_cxl._compat import checkpoint
from jax_cxl._job import platforms
from jax_cxl._lowering import contract
from jax_cxl._store.memory import catalog, layout
from jax_cxl._tier.residuals import primitives, rings

_LAYERS, _WIDTH = 5, 64
_AUTO = jax.sharding.AxisType.Auto


def _layer(x, w):
    x = checkpoint_name(x, "x")
    h = checkpoint_name(jnp.tanh(x @ w["in"]), "h")
    return x + h.astype(x.dtype) @ w["out"], None


def _loss(body, weights, x):
    y, _ = jax.lax.scan(body, x, weights)
    return jnp.mean(y**2)


def _gradients(body):
    return jax.value_and_grad(functools.partial(_loss, body), argnums=(0, 1))


_POLICY = jax.checkpoint_policies.save_only_these_names("x", "h")
_ON_DEVICE = jax.checkpoint(_layer, policy=_POLICY, prevent_cse=False)


def _arrays(rows=16, seed=0):
    rng = np.random.default_rng(seed)
    shape = (_LAYERS, _WIDTH, _WIDTH)
    weights = {k: jnp.asarray(0.1 * rng.normal(size=shape), "f4") for k in ("in", "out")}
    return weights, jnp.asarray(rng.normal(size=(rows, _WIDTH)), "f4")


def _eight_devices(test):
    @functools.wraps(test)
    def run(self, *args, **kwargs):
        if jax.device_count() < 8:
            self.skipTest("needs eight devices, which conftest.py makes of the CPU under pytest")
        test(self, *args, **kwargs)

    return run


class ResidualsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = self.enter_context(tempfile.TemporaryDirectory(dir=parent))
        self.store = jax_cxl.Store(f"file:{self.folder}/a,{self.folder}/b?size=256MiB")

    def offloaded(self, f=_layer, names=("x", "h"), calls=_LAYERS, **options):
        options.setdefault("prevent_cse", False)
        return jax_cxl.offload_residuals(f, self.store, names=names, calls=calls, **options)

    def assert_same(self, got, expected):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            self.assertEqual(np.asarray(a).tobytes(), np.asarray(b).tobytes())

    def check(self, body, reference=_ON_DEVICE, steps=3):
        compute = jax.jit(_gradients(body))
        for seed in range(steps):
            arrays = _arrays(seed=seed)
            self.assert_same(compute(*arrays), jax.jit(_gradients(reference))(*arrays))
        return compute

    def test_gradients_have_the_bits_of_values_on_the_device(self):
        compute = self.check(self.offloaded())
        kept = [
            v.aval for e in jax.make_jaxpr(compute)(*_arrays()).eqns[0].params["jaxpr"].eqns
            if e.primitive.name == "scan" for v in e.outvars
        ]  # fmt: skip
        # The forward pass keeps only handles of the residuals.
        self.assertIn((_LAYERS, 1, 4), [aval.shape for aval in kept])
        self.assertNotIn((_LAYERS, 16, _WIDTH), [aval.shape for aval in kept])

    def test_no_grad_no_offload(self):
        text = jax.jit(functools.partial(_loss, self.offloaded())).lower(*_arrays()).as_text()
        self.assertNotIn("residual", text)

    def test_outside_of_jit(self):
        arrays = _arrays()
        expected = _gradients(_ON_DEVICE)(*arrays)
        self.assert_same(_gradients(self.offloaded())(*arrays), expected)

    def test_layers_without_scan(self):
        def loss(body, weights, x):
            for n in range(_LAYERS):
                x, _ = body(x, jax.tree.map(lambda w, n=n: w[n], weights))
            return jnp.mean(x**2)

        arrays = _arrays()
        plain = jax.checkpoint(_layer, policy=_POLICY)
        expected = jax.jit(jax.value_and_grad(functools.partial(loss, plain)))(*arrays)
        body = self.offloaded(prevent_cse=True)
        got = jax.jit(jax.value_and_grad(functools.partial(loss, body)))(*arrays)
        self.assert_same(got, expected)

    @parameterized.parameters("bfloat16", "bool", "c8", "f8")
    @pytest.mark.sample(3)
    def test_dtypes(self, dtype):
        def layer(x, w):
            x = checkpoint_name(x, "x")
            h = checkpoint_name((100 * x).astype(dtype), "h")
            h = h.real if jnp.iscomplexobj(h) else h
            return x @ w["in"] + h.astype(x.dtype) @ w["out"], None

        with jax.enable_x64(dtype == "f8"):
            self.check(self.offloaded(layer), jax.checkpoint(layer, prevent_cse=False), steps=1)

    @parameterized.parameters(0, 7, 4097)
    @pytest.mark.sample(2)
    def test_sizes(self, rows):
        """Values that are empty, that share blocks, and that cross several devices."""
        compute, arrays = jax.jit(_gradients(self.offloaded())), _arrays(rows)
        expected = jax.jit(_gradients(_ON_DEVICE))(*arrays)
        first = compute(*arrays)
        for _ in range(3):
            self.assert_same(compute(*arrays), first)
        if jax.default_backend() == "cpu":
            self.assert_same(first, expected)
        else:  # The two programs add the loss's parts in different orders.
            for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    def test_layers_are_not_merged_with_the_forward_pass(self):
        body = jax_cxl.offload_residuals(_layer, self.store, names=("x", "h"), calls=1)
        for f, expected in ((body, True), (self.offloaded(), False)):
            gradient = jax.grad(lambda x, w, f=f: jnp.sum(f(x, w)[0]))
            weights, x = _arrays()
            w = jax.tree.map(lambda w: w[0], weights)
            text = jax.jit(gradient).lower(x, w).as_text()
            self.assertEqual("optimization_barrier" in text, expected)

    def test_names_in_scans_of_the_function_and_arguments(self):
        @functools.partial(jax.jit, static_argnames="half")
        def inner(x, half):
            return checkpoint_name(jnp.sin(x / (2 if half else 1)), "h")

        def block(half, x, w, *, bias):
            def once(x, w):
                return inner(x @ w, half=half) + bias, None

            return jax.lax.scan(once, checkpoint_name(x, "x"), w)[0]

        def loss(f, w, x):
            return jnp.sum(f(True, f(True, x, w, bias=1.0), w, bias=x[0, 0]))

        weights, x = _arrays()
        body = self.offloaded(block, calls=2, static_argnums=0)
        plain = jax.checkpoint(block, static_argnums=0)
        compute = jax.jit(jax.value_and_grad(functools.partial(loss, body), argnums=(0, 1)))
        expected = jax.jit(jax.value_and_grad(functools.partial(loss, plain), argnums=(0, 1)))
        self.assert_same(compute(weights["in"], x), expected(weights["in"], x))
        text = compute.lower(weights["in"], x).as_text()
        # Each of the two calls puts "x" and, in the scan, "h".
        self.assertEqual(text.count(f"@{contract.PUT_RESIDUAL_TARGET}"), 4)

    def test_names_in_while_loops_are_computed_again(self):
        def layer(x, w):
            x = checkpoint_name(x, "x")
            once = lambda h: checkpoint_name(0.5 * h, "x")  # noqa: E731
            h = jax.lax.while_loop(lambda h: jnp.max(h) > 1, once, jax.lax.stop_gradient(x))
            return x + jnp.tanh(x @ w["in"]) @ w["out"] * h, None

        self.check(self.offloaded(layer, names="x"), jax.checkpoint(layer))

        def loop(x):
            return jax.lax.while_loop(jnp.any, lambda x: checkpoint_name(x - 1, "x"), x)

        with self.assertRaisesRegex(ValueError, "loop names no value 'x'.*outside of .*while_loop"):
            self.offloaded(loop, names="x")(jnp.ones(3))

    def test_vmap_of_layers(self):
        weights, x = _arrays()
        mapped = lambda body: lambda x, w: jax.vmap(body, (0, None))(x, w)  # noqa: E731
        compute = jax.jit(_gradients(mapped(self.offloaded(calls=_LAYERS * 16))))
        self.assert_same(compute(weights, x), jax.jit(_gradients(mapped(_ON_DEVICE)))(weights, x))
        with self.assertRaisesRegex(NotImplementedError, "take the gradient of the mapped"):
            jax.vmap(_gradients(self.offloaded()), (None, 0))(weights, x[:, None])

    def test_second_derivatives_are_refused(self):
        weights, x = _arrays()
        first = jax.grad(functools.partial(_loss, self.offloaded()), argnums=1)
        with self.assertRaisesRegex(NotImplementedError, "only first derivatives"):
            jax.grad(lambda x: jnp.sum(first(weights, x)))(x)

    # The pair (True, False) is missing: there JAX does not add up the gradients of replicated
    # weights.
    @parameterized.parameters((False, False), (False, True), (True, True))
    @_eight_devices
    @pytest.mark.sample(2)
    def test_shard_map(self, inside, check_vma):
        mesh = jax.make_mesh((4, 2), ("data", "model"), (_AUTO,) * 2)
        weights, x = _arrays()

        def local(body, weights, x):
            y, _ = jax.lax.scan(body, x, weights)
            return jax.lax.pmean(jnp.mean(y**2), "data")

        def compute(body):
            f = functools.partial(local, body)
            of = lambda f: jax.value_and_grad(f, argnums=(0, 1))  # noqa: E731
            specs = (jax.P(), jax.P("data"))
            mapped = jax.shard_map(
                of(f) if inside else f,
                mesh=mesh,
                in_specs=specs,
                out_specs=(jax.P(), specs) if inside else jax.P(),
                check_vma=check_vma,
            )
            return jax.jit(mapped if inside else of(mapped))(weights, x)

        self.assert_same(compute(self.offloaded()), compute(_ON_DEVICE))

    @_eight_devices
    def test_several_devices_without_shard_map(self):
        mesh = jax.make_mesh((4, 2), ("data", "model"), (_AUTO,) * 2)
        rows = jax.NamedSharding(mesh, jax.P("data"))
        weights, x = _arrays()
        arrays = jax.device_put(weights, jax.NamedSharding(mesh, jax.P())), jax.device_put(x, rows)
        with self.assertRaisesRegex(ValueError, "'x' is divided between them: give its sharding"):
            jax.jit(_gradients(self.offloaded()))(*arrays)
        both = jax.NamedSharding(mesh, jax.P("data", "model"))

        def layer(x, w):
            x = checkpoint_name(jax.lax.with_sharding_constraint(x, rows), "x")
            h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w["in"]), both)
            return x + checkpoint_name(h, "h") @ w["out"], None

        plain = jax.checkpoint(layer, policy=_POLICY, prevent_cse=False)
        compute = jax.jit(_gradients(self.offloaded(layer, {"x": rows, "h": both})))
        expected = jax.jit(_gradients(plain))(*arrays)
        for _ in range(3):
            self.assert_same(compute(*arrays), expected)
        moved = re.findall(r"u32\S+ all-\w+\(", compute.lower(*arrays).compile().as_text())
        self.assertEmpty(moved)  # The handles stay where they are.

    @_eight_devices
    def test_explicit_axes(self):
        mesh = jax.make_mesh((4,), ("data",), (jax.sharding.AxisType.Explicit,))
        weights, x = _arrays()
        with jax.set_mesh(mesh):
            arrays = jax.device_put(weights, jax.P()), jax.device_put(x, jax.P("data"))
            expected = jax.jit(_gradients(_ON_DEVICE))(*arrays)
            self.assert_same(jax.jit(_gradients(self.offloaded()))(*arrays), expected)

    def test_programs_side_by_side(self):
        """Threads run programs on the same device at once. Each program has memory of its own."""
        arrays = _arrays(1024)
        expected = jax.jit(_gradients(_ON_DEVICE))(*arrays)
        found = []

        def run():
            compute = jax.jit(_gradients(self.offloaded()))
            found.extend(compute(*arrays) for _ in range(4))

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertLen(found, 12)
        for got in found:
            self.assert_same(got, expected)

    def test_donation(self):
        weights, x = _arrays()

        def step(body):
            return lambda w, x: (
                jax.tree.map(lambda w, g: w - g, w, _gradients(body)(w, x)[1][0]),
                x + 1,
            )

        compute = jax.jit(step(self.offloaded()), donate_argnums=(0, 1))
        plain = jax.jit(step(_ON_DEVICE))
        got, expected = (weights, x), _arrays()
        for _ in range(5):
            got, expected = compute(*got), plain(*expected)
        self.assert_same(got, expected)

    def test_a_backward_pass_twice(self):
        weights, x = _arrays()
        forward = jax.jit(lambda w, x: jax.vjp(functools.partial(_loss, self.offloaded()), w, x))
        _, backward = forward(weights, x)
        self.assert_same(backward(jnp.ones(())), backward(jnp.ones(())))

    def test_values_that_were_overwritten_are_an_error(self):
        compute = jax.jit(_gradients(self.offloaded(calls=1)))
        arrays = _arrays(8200)
        with self.assertRaisesRegex(jax_cxl.errors.PoolTooSmallError, "Increase `calls`"):
            for _ in range(2):  # On GPUs the second program reports it.
                jax.block_until_ready(compute(*arrays))

    def test_too_little_space(self):
        compute = jax.jit(_gradients(self.offloaded(calls=10_000)))
        pattern = r"h, x of 10000 calls need 655360000 bytes for each device\. .* need \d+ bytes"
        with self.assertRaisesRegex(jax_cxl.errors.PoolTooSmallError, pattern):
            compute.lower(*_arrays(128))
        self.assertEmpty(self.store.list())

    def test_memory_is_given_back(self):
        compute = jax.jit(_gradients(self.offloaded()))
        for rows in (1, 2, 16):  # These share memory.
            jax.block_until_ready(compute(*_arrays(rows)))
        self.assertLen(self.store.list(), 1)
        with self.assertRaisesRegex(jax_cxl.StoreError, "reads it"):
            self.store.delete(self.store.list()[0].name)
        del compute
        jax.clear_caches()
        gc.collect()
        self.assertEmpty(self.store.list())

    def test_a_value_that_the_forward_pass_lacks(self):
        value = primitives.Value("x", 0, None, None)
        of = jax.make_jaxpr(lambda x: jnp.sin(primitives.offload_p.bind(x, value=value)))(1.0)
        split = checkpoint._partial_eval.partial_eval_jaxpr_custom
        forward, backward, lacks, _, kept = split(of.jaxpr, [True], [True], False, False, _POLICY)
        self.assertEmpty(forward.eqns)
        names = [eqn.primitive.name for eqn in backward.eqns]
        self.assertEqual(names, ["offload_residual", "sin"])
        self.assertEqual((lacks, kept), ([True], 0))

    def test_memory_of_a_process_that_was_killed(self):
        devices = self.store._names.made()
        abandoned = catalog.create(devices, f"{catalog.RESIDUALS}killed", 0, 1 << 20)
        compute = jax.jit(_gradients(self.offloaded()))
        compute.lower(*_arrays())
        names = [entry.name for entry in catalog.entries(devices)]
        self.assertLen(names, 1)
        self.assertEqual(catalog.entries(devices)[0].keep, 0)  # Nobody can publish there.
        self.assertNotIn(abandoned.name, names)

    def test_memory_that_is_not_coherent(self):
        if jax.default_backend() != "cpu":
            self.skipTest("offloads from CPUs, and asks for the error of GPUs")
        self.store = jax_cxl.Store(f"file:{self.folder}/flush?size=64MiB&coherence=flush")
        self.check(self.offloaded(), steps=1)
        with self.assertRaisesRegex(jax_cxl.StoreError, "GPUs cannot .* coherence=flush"):
            rings.Ring(self.store._names.made(), 1, "").use(platforms.CUDA)

    def test_whole_rows_of_blocks(self):
        devices = self.store._names.made()
        row = 2 * layout.BLOCK_BYTES  # The store has two paths.
        sizes = {needed: rings.Ring(devices, needed, "").bytes for needed in (0, row, row + 1)}
        self.assertEqual(sizes, {0: row, row: row, row + 1: 2 * row})

    @parameterized.parameters(1, 2)
    @_eight_devices
    def test_shard_map_over_some_of_the_axes(self, others):
        mesh = jax.make_mesh((4, others), ("data", "model"), (_AUTO,) * 2)
        weights, x = _arrays()

        def compute(body):
            def local(weights, x):
                return jax.lax.pmean(_loss(body, weights, x), "data")

            mapped = jax.shard_map(
                local,
                mesh=mesh,
                in_specs=(jax.P(), jax.P("data")),
                out_specs=jax.P(),
                axis_names={"data"},
            )
            return jax.jit(jax.value_and_grad(mapped, argnums=(0, 1)))(weights, x)

        if others == 1:
            self.assert_same(compute(self.offloaded()), compute(_ON_DEVICE))
        else:
            with self.assertRaisesRegex(ValueError, "runs on several devices"):
                compute(self.offloaded())

    def test_wrong_arguments(self):
        for error, pattern, arguments in (
            (ValueError, "at least 1", {"calls": 0}),
            (TypeError, "calls=1.5", {"calls": 1.5}),
            (ValueError, "at least one name", {"names": ()}),
            (TypeError, "must be a str", {"names": (3,)}),
            (TypeError, "NamedSharding", {"names": {"x": jax.P("data")}}),
        ):
            with self.assertRaisesRegex(error, pattern):
                self.offloaded(**arguments)
        with self.assertRaisesRegex(TypeError, "must be a jax_cxl.Store"):
            jax_cxl.offload_residuals(_layer, "shm:a", names="x", calls=1)
        with self.assertRaisesRegex(ValueError, "_layer names no value 'y'"):
            self.offloaded(names=("x", "y"))(*_arrays()[::-1])
        four = lambda x: checkpoint_name(x.astype(jnp.int4), "x").astype(x.dtype)  # noqa: E731
        with self.assertRaisesRegex(TypeError, "int4 cannot be offloaded"):
            self.offloaded(four, names="x")(jnp.ones(3))
        with self.assertRaisesRegex(TypeError, "name its key data"):
            self.offloaded(lambda k: checkpoint_name(k, "k"), names="k")(jax.random.key(0))


if __name__ == "__main__":
    # Without autotuning, XLA for GPUs multiplies matrices in the same way in all programs.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
    absltest.main()
