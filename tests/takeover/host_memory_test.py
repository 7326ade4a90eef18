"""jax_cxl.replace_collectives keeps the memory spaces of arguments and results."""

import logging
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.compute_on import compute_on

import jax_cxl
from jax_cxl._takeover import entry_layout
from jax_cxl._takeover.hlo import shape as shapes
from jax_cxl._takeover.hlo.module import Module
from jax_cxl._takeover.hlo.wire import Message

KINDS = "device", "pinned_host", "unpinned_host"
VALUES = np.arange(16, dtype=np.float32).reshape(4, 4)
SUM = VALUES.sum()


def on(kind, *axes):
    mesh = jax.sharding.Mesh(jax.devices()[:4], ("i",))
    return jax.NamedSharding(mesh, jax.P(*axes), memory_kind=kind)


DEVICE, HOST = on("device", "i"), on("pinned_host", "i")


def to_device(x):
    return jax.device_put(x, DEVICE)


def to_host(x):
    return jax.device_put(x, HOST)


def offloaded(x):
    """A function whose backward pass reads activations that are in host memory."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["a"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def layer(x, _):
        return checkpoint_name(x * x - x.sum(), "a"), None

    return jax.lax.scan(jax.checkpoint(layer, policy=policy), x / 64, None, length=3)[0].sum()


def computed_on_host(x):
    def twice(x):
        return x + x

    if jax.__version_info__ < (0, 11):
        return compute_on("device_host")(jax.jit(twice))(x) + x.sum()
    there = compute_on(twice, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device)
    return there(x) + x.sum()


def looped(x):
    """A function whose loop carries an argument that is in host memory."""

    def body(_, carry):
        kept, total = carry
        return kept, total + to_device(kept).sum()

    kept, total = jax.lax.fori_loop(0, 3, body, (x, jnp.float32(0)))
    return kept, total


# Function, memory of its argument, options of jit.
CASES = {
    "put_inside": (lambda x: to_host(x + x.sum()), DEVICE, {}),
    "space": (lambda x: jax.device_put(x + x.sum(), jax.memory.Space.Host), DEVICE, {}),
    "only_a_sum": (lambda x: x.sum(), DEVICE, {"out_shardings": on("pinned_host")}),
    "only_a_gather": (lambda x: x, DEVICE, {"out_shardings": on("pinned_host")}),
    "several": (lambda x: (x + x.sum(), x * 2), DEVICE, {"out_shardings": (HOST, DEVICE)}),
    "argument_returned": (
        lambda x: (x, x, to_device(x).sum()),
        HOST,
        {"out_shardings": (HOST, HOST, None)},
    ),
    "nested": (lambda x: {"a": to_host(x), "b": [x.sum(), to_host(x - x.sum())]}, DEVICE, {}),
    "argument_on_host": (lambda x: to_device(x) - to_device(x).sum(), HOST, {}),
    "in_shardings": (lambda x: to_device(x) - to_device(x).sum(), HOST, {"in_shardings": HOST}),
    "donated": (lambda x: to_host(to_device(x) - to_device(x).sum()), HOST, {"donate_argnums": 0}),
    "donated_one_of_two": (
        lambda x: (to_host(to_device(x) - to_device(x).sum()), to_device(x).sum()),
        HOST,
        {"donate_argnums": 0},
    ),
    "offloaded": (jax.value_and_grad(offloaded), DEVICE, {}),
    "computed_on_host": (computed_on_host, DEVICE, {}),
    "computed_on_host_to_host": (computed_on_host, DEVICE, {"out_shardings": HOST}),
    "looped": (looped, HOST, {"out_shardings": (HOST, None)}),
    "branches": (
        lambda x: jax.lax.cond(x[0, 0] > 0, lambda: to_host(x), lambda: to_host(x + x.sum())),
        DEVICE,
        {"out_shardings": HOST},
    ),
}


def put(where):
    return jax.make_array_from_callback(VALUES.shape, where, lambda i: VALUES[i])


class MemoryTest(parameterized.TestCase):
    @parameterized.product(argument=KINDS, result=KINDS)
    def test_kinds(self, argument, result):
        def function(x):
            return to_device(x) + to_device(x).sum()

        jitted = jax.jit(function, out_shardings=on(result, "i"))
        x = put(on(argument, "i"))
        before = jax_cxl.stats()
        with jax_cxl.replace_collectives(local=True, strict=True):
            compiled = jitted.lower(x).compile()
            y = compiled(x)
        self.assertEqual(y.sharding.memory_kind, result)
        self.assertEqual(jax.tree.leaves(compiled.input_shardings)[0].memory_kind, argument)
        np.testing.assert_array_equal(y, VALUES + SUM)
        self.assertGreater(jax_cxl.stats().collectives_taken, before.collectives_taken)

    @parameterized.parameters(*CASES)
    def test_same_values_in_the_same_memory(self, name):
        function, where, options = CASES[name]
        # Each compilation gets a function of its own, so that no program comes from JAX's caches.
        expected = jax.jit(lambda x: function(x), **options)(put(where))
        before = jax_cxl.stats()
        with jax_cxl.replace_collectives(local=True, strict=True):
            actual = jax.jit(lambda x: function(x), **options)(put(where))

        def check(a, b):
            self.assertEqual(a.sharding.memory_kind, b.sharding.memory_kind)
            np.testing.assert_array_equal(a, b)

        jax.tree.map(check, actual, expected)
        self.assertGreater(jax_cxl.stats().collectives_taken, before.collectives_taken)


def array(order, memory_space):
    """Returns the ShapeProto of float32[2, 3] with this order of dimensions and memory space."""
    layout = Message().set_integers(1, order).set(8, memory_space)
    return Message().set(2, 11).set_integers(3, [2, 3]).set(5, layout)


def module(arguments, result, argument=None, opcode="add"):
    """Returns a module whose program has the shapes `arguments` and `result`.

    Its entry computation has the result in the device's memory, and the argument too by default.
    """
    plain = array([1, 0], 0) if argument is None else argument
    parameter = Message().set(1, "x").set(2, "parameter").set(3, plain).set(9, 0).set(35, 1)
    entry = Message().add(2, parameter).set(5, 7).set(6, 1)
    if opcode != "parameter":
        root = Message().set(1, "y").set(2, opcode).set(3, array([1, 0], 0)).set(35, 2)
        entry.add(2, root.set_integers(36, [1, 1])).set(6, 2)
    program = Message().add(1, arguments).set(2, result)
    return Module(Message().add(3, entry).set(4, program).set(6, 7).encode())


class EntryLayoutTest(parameterized.TestCase):
    def test_memory_spaces_are_kept(self):
        host, device = array([1, 0], 5), array([1, 0], 0)
        for argument, result in ((host, device), (device, host), (host, host)):
            made = module(argument, result)
            self.assertEqual(entry_layout.obstacle(made), "")
            entry_layout.keep(made)
            again = Module(made.encode()).entry
            self.assertEqual(again.instruction(1).proto.blob(3), argument.encode())
            self.assertEqual(again.instruction(2).proto.blob(3), result.encode())

    def test_nothing_is_lost_that_cannot_be_kept(self):
        device, other = array([1, 0], 0), array([0, 1], 0)
        self.assertIn("argument x", entry_layout.obstacle(module(other, device)))
        self.assertIn("result y", entry_layout.obstacle(module(device, other)))
        returned = module(device, array([1, 0], 5), opcode="parameter")
        self.assertIn("result x", entry_layout.obstacle(returned))

    def test_without_memory_space(self):
        both = [
            Message().set(2, 13).add(4, array([1, 0], n)).add(4, array([0, 1], 0)) for n in (0, 5)
        ]
        device, host = (shapes.without_memory_space(each).encode() for each in both)
        self.assertEqual(device, host)

    def test_an_obstacle_leaves_the_program_to_xla(self):
        x = harness.values(3)
        with (
            mock.patch.object(entry_layout, "obstacle", return_value="of a test"),
            jax_cxl.replace_collectives(local=True),
            self.assertLogs("jax_cxl", logging.WARNING) as logged,
        ):
            actual = harness.run(lambda v: jax.lax.psum(v, "i") + 1, x)
        harness.check_equal(actual, np.stack([harness.fold(x) + 1] * 4))
        self.assertIn("does not go through the pool: of a test", logged.output[0])
        with (
            mock.patch.object(entry_layout, "obstacle", return_value="of a test"),
            jax_cxl.replace_collectives(local=True, strict=True),
            self.assertRaisesRegex(jax_cxl.InvalidCollectiveError, "of a test"),
        ):
            harness.run(lambda v: jax.lax.psum(v, "i") + 2, x)


if __name__ == "__main__":
    absltest.main()
