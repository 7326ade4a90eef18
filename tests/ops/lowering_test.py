"""The attributes that the collectives pass to the handler, and their errors. Runs no program."""

import re
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized
from jax.sharding import AxisType

import jax_cxl
from jax_cxl._job import lifecycle, platforms
from jax_cxl.ops import public as ops


def lower(function, x, *, check_vma=True, on=None):
    return harness.program(function, check_vma=check_vma, on=on).lower(x).as_text()


def attributes(text):
    """Returns the attributes of each call, in the order of the module's text."""
    calls = []
    for body in re.findall(r"@jax_cxl_\w+\(.*?mhlo.backend_config = \{(.*?)\}", text):
        found = dict(re.findall(r"(\w+) = (dense<.*?>|\d+) : ", body))
        found["name"] = re.search(r'name = "(\w+)"', body).group(1)
        calls.append(found)
    return calls


class FakeWorldTest(parameterized.TestCase):
    """The ranks differ from the devices' ids, so that the two cannot be confused."""

    def setUp(self):
        super().setUp()
        ranks = {device.id: 100 + device.id for device in jax.devices()}
        world = types.SimpleNamespace(rank_of_device=ranks, platform=platforms.CPU, generation=0)
        self.enter_context(mock.patch.object(lifecycle, "ensure_started", lambda: world))
        self.rank_of_device = ranks

    @parameterized.parameters(
        ("all_gather", (), 1, 6),
        ("psum", (), 2, 6),
        ("psum_scatter", (), 3, 3),
        ("all_to_all", (0, 0), 4, 3),
        ("broadcast", (), 5, 6),
        ("reduce", (), 6, 6),
        ("gather", (), 7, 6),
        ("scatter", (), 8, 3),
    )
    def test_attributes(self, name, arguments, op, count):
        x = harness.values(2, 3, dtype=np.int16, ranks=2)
        operation = getattr(ops, name)
        (call,) = attributes(
            lower(lambda v: operation(v, "i", *arguments), x, on=harness.mesh((2,)))
        )
        self.assertEqual(
            call,
            {
                "name": name,
                "op": str(op),
                "reduce_op": "0",
                "dtype": "2",
                "count": str(count),
                "root": "0",
                "generation": "0",
                "group_size": "2",
                "groups": "dense<[100, 101]>",
                "sources": "dense<>",
                "reverse": "0",
                "rows": "dense<>",
                "places": "dense<>",
                "processes": "0",
            },
        )

    def test_roots_sources_and_reductions(self):
        x = harness.values(2)
        calls = attributes(
            lower(
                lambda v: (
                    ops.pmin(v, "i"),
                    ops.pmax(v, "i"),
                    ops.reduce(v, "i", root=2),
                    ops.ppermute(v, "i", [(3, 0), (0, 2)]),
                ),
                x,
            )
        )
        self.assertEqual([c["reduce_op"] for c in calls], ["2", "3", "0", "0"])
        self.assertEqual([c["root"] for c in calls], ["0", "0", "2", "0"])
        self.assertEqual(calls[3]["sources"], "dense<[3, -1, 0, -1]>")

    def test_groups_are_world_ranks(self):
        x = harness.values(2, ranks=8)
        on = harness.mesh((2, 2, 2), ("i", "j", "k"))
        for axis_name, groups, expected in (
            ("j", None, [0, 2, 1, 3, 4, 6, 5, 7]),
            (("k", "i"), None, [0, 4, 1, 5, 2, 6, 3, 7]),
            (("i", "j"), [[3, 0], [1, 2]], [6, 0, 7, 1, 2, 4, 3, 5]),
        ):
            (call,) = attributes(
                lower(
                    lambda v, a=axis_name, g=groups: jax_cxl.all_gather(v, a, axis_index_groups=g),
                    x,
                    on=on,
                )
            )
            ranks = [int(r) for r in re.findall(r"\d+", call["groups"])]
            self.assertEqual(ranks, [100 + r for r in expected])
        backwards = jax.sharding.Mesh(np.array(jax.devices()[3::-1]), ("i",))
        (call,) = attributes(lower(lambda v: jax_cxl.psum(v, "i"), harness.values(2), on=backwards))
        self.assertEqual(call["groups"], "dense<[103, 102, 101, 100]>")

    @parameterized.parameters(False, True)
    def test_ranks_lower_a_program_alike(self, check_vma):
        @jax.jit
        def inner(v):
            return v + jax_cxl.psum_scatter(jnp.stack([v] * 4), "i")

        def body(v):
            v = inner(inner(v))
            v += jax_cxl.psum(v, "i")
            v += jax_cxl.psum(v, "i")  # An equal call is another collective.
            v = jax.lax.scan(lambda c, _: (c + jax_cxl.psum(jnp.sin(c), "i"), None), v, length=3)[0]
            return jax.lax.cond(v.sum() > 0, lambda u: u + jax_cxl.psum(u, "i"), lambda u: u, v)

        text = lower(body, harness.values(2), check_vma=check_vma)
        self.assertLen(attributes(text), 5)  # `inner` is one function that is called twice.
        # The attributes must not depend on what this process traced before: they are part of XLA's
        # launch id.
        jax.clear_caches()
        lower(lambda v: inner(v) * 2, harness.values(2), check_vma=check_vma)
        lowered = attributes(lower(body, harness.values(2), check_vma=check_vma))
        self.assertEqual(set(map(str, lowered)), set(map(str, attributes(text))))

    def test_blocks_are_outermost(self):
        x = harness.values(2, 4, 3)
        text = lower(
            lambda v: (
                jax_cxl.all_gather(v, "i", axis=2),
                jax_cxl.psum_scatter(v, "i", scatter_dimension=1),
            ),
            x,
        )
        layouts = re.findall(r"(operand|result)_layouts = \[dense<(\[.*?\])>", text)
        self.assertEqual(
            layouts,
            [
                ("operand", "[2, 1, 0]"),
                ("result", "[3, 1, 0, 2]"),
                ("operand", "[2, 0, 1]"),
                ("result", "[1, 0]"),
            ],
        )

    @parameterized.parameters(False, True)
    def test_nothing_to_communicate(self, check_vma):
        def body(v):
            return (
                jax_cxl.all_gather(v, "i", axis=1),
                jax_cxl.psum(v, "i"),
                jax_cxl.psum_scatter(v[None], "i"),
                jax_cxl.barrier(v, "i"),
                ops.all_to_all(v[None], "i", 0, 1),
                ops.ppermute(v, "i", [(0, 0)]),
                ops.broadcast(v, "i"),
            )

        x = harness.values(2, 3, ranks=1)
        one = harness.mesh((1,))
        self.assertNotIn("jax_cxl_", lower(body, x, check_vma=check_vma, on=one))
        out = harness.run(body, x, check_vma=check_vma, on=one)
        self.assertEqual(out[0].shape, (1, 2, 1, 3))
        harness.check_equal(out[1], x)
        empty = harness.values(0, 3)
        text = lower(lambda v: (jax_cxl.psum(v, "i"), jax_cxl.all_gather(v, "i")), empty)
        self.assertNotIn("jax_cxl_collective", text)
        alone = [[0], [1], [2], [3]]
        text = lower(lambda v: jax_cxl.psum(v, "i", axis_index_groups=alone), harness.values(2))
        self.assertNotIn("jax_cxl_collective", text)

    def test_devices_outside_the_world(self):
        self.rank_of_device.pop(3)
        with self.assertRaisesRegex(ValueError, "device 3 .* not in the pool's world"):
            lower(lambda v: jax_cxl.psum(v, "i"), harness.values(2))


class ErrorsTest(parameterized.TestCase):
    @parameterized.parameters("all_gather", "psum", "psum_scatter", "barrier", "pmax")
    def test_unbound_axis(self, name):
        operation = getattr(ops, name)
        message = f"unbound axis name: i.*jax_cxl.{name} under `jax.shard_map`"
        with self.assertRaisesRegex(NameError, message):
            operation(np.ones(4), "i")
        with self.assertRaisesRegex(NameError, message):
            jax.jit(lambda v: operation(v, "i"))(np.ones(4))

    def test_axis_that_the_mesh_lacks(self):
        with self.assertRaisesRegex(NameError, r"unbound axis name: k.*\('i',\)"):
            lower(lambda v: jax_cxl.psum(v, "k"), harness.values(2))

    def test_positional_and_repeated_axes(self):
        with self.assertRaisesRegex(TypeError, "axis_name=0"):
            lower(lambda v: jax_cxl.psum(v, 0), harness.values(2))
        with self.assertRaisesRegex(ValueError, "twice"):
            lower(lambda v: jax_cxl.psum(v, ("i", "i")), harness.values(2))

    @parameterized.parameters(jnp.float6_e2m3fn, jnp.float6_e3m2fn)
    def test_dtypes_that_cpus_do_not_have(self, dtype):
        with self.assertRaisesRegex(TypeError, f"{dtype.dtype}.*Convert it"):
            lower(lambda v: jax_cxl.all_gather(v.astype(dtype), "i"), harness.values(2))

    def test_keys(self):
        with self.assertRaisesRegex(TypeError, "jax.random.key_data"):
            lower(lambda v: jax_cxl.all_gather(jax.random.key(0), "i"), harness.values(2))

    @parameterized.parameters(
        lambda v: jax_cxl.psum(v, "i"),
        lambda v: jax_cxl.all_gather(v, "i", axis=1, tiled=True),
        lambda v: jax_cxl.psum_scatter(v, "i", scatter_dimension=1, tiled=True),
        lambda v: jax_cxl.broadcast(v * 2, "i", root=1),
        lambda v: jax_cxl.pscan(v, "i"),
    )
    def test_axes_that_are_not_manual(self, function):
        mesh = harness.mesh((2, 2), ("i", "j"))
        x = jax.device_put(harness.values(16, ranks=8), jax.NamedSharding(mesh, jax.P("i", "j")))

        def program(manual):
            mapped = jax.shard_map(
                function,
                mesh=mesh,
                in_specs=jax.P("i"),
                out_specs=jax.P("i"),
                axis_names=manual,
                check_vma=False,
            )
            return jax.jit(mapped)

        harness.check_equal(np.asarray(program({"i"})(x)), np.asarray(program({"i", "j"})(x)))

    def test_an_axis_that_is_not_manual(self):
        mapped = jax.shard_map(
            lambda v: jax_cxl.psum(v, "j"),
            mesh=harness.mesh((2, 2), ("i", "j")),
            in_specs=jax.P("i"),
            out_specs=jax.P("i"),
            axis_names={"i"},
        )
        with self.assertRaisesRegex(NotImplementedError, "'j' is not manual here"):
            jax.jit(mapped).lower(np.ones(4, np.float32))

    def test_mesh_without_devices(self):
        abstract = jax.sharding.AbstractMesh((4,), ("i",), axis_types=(AxisType.Auto,))
        x = jax.device_put(np.ones(4, np.float32), jax.NamedSharding(harness.mesh(), jax.P("i")))
        total = jax.shard_map(
            lambda v: jax_cxl.psum(v, "i"),
            mesh=abstract,
            in_specs=jax.P("i"),
            out_specs=jax.P(),
        )
        with self.assertRaisesRegex(NotImplementedError, "jax.set_mesh"):
            jax.jit(total).lower(x)

    def test_groups_and_several_axes_under_vmap(self):
        x = np.ones((4, 2))
        with self.assertRaisesRegex(NotImplementedError, "axis_index_groups.*jax.vmap"):
            jax.vmap(
                lambda v: jax_cxl.psum(v, "i", axis_index_groups=harness.GROUPS),
                axis_name="i",
            )(x)
        with self.assertRaisesRegex(NotImplementedError, "once for each axis"):
            lower(
                jax.vmap(lambda v: jax_cxl.all_gather(v, ("b", "i")), axis_name="b"),
                harness.values(2),
            )

    def test_extrema_have_no_derivative(self):
        with self.assertRaisesRegex(NotImplementedError, "ifferentiation"):
            lower(jax.grad(lambda v: ops.pmax(v, "i").sum()), harness.values(2))


if __name__ == "__main__":
    absltest.main()
