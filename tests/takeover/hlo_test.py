"""jax_cxl._takeover.hlo reads XLA's modules, and writes them back without loss."""

import re
from unittest import mock

import hlo_modules
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import given, strategies as st
from jax.extend import xla

from jax_cxl._takeover import build, config, match
from jax_cxl._takeover.hlo import groups, shape, wire
from jax_cxl._takeover.hlo.module import Instruction, Module
from jax_cxl._takeover.hlo.wire import Message
from jax_cxl._takeover.schedule import costs


def mesh_axes(sizes, axes, order=(), iota=None):
    """Returns groups in their newest notation: as axes, or parts of axes, of a mesh."""
    mesh = Message()
    for size in sizes:
        mesh.add(1, Message().add(1, "axis").add(2, size))
    mesh.set_integers(2, order)
    if iota is not None:
        mesh.add(3, Message().set_integers(1, iota[0]).set_integers(2, iota[1]))
    out = Message().add(1, mesh)
    for axis, *part in axes:
        reference = Message().add(1, axis)
        if part:
            reference.add(2, Message().add(1, part[0]).add(2, part[1]))
        out.add(2, reference)
    return Message().add(93, out)


def iota(rows, columns, dimensions, permutation):
    proto = Message().add(1, rows).add(2, columns).set_integers(3, dimensions)
    return Message().add(92, proto.set_integers(4, permutation))


def listed(*rows):
    out = Message()
    for row in rows:
        out.add(1, Message().set_integers(1, row))
    return Message().add(87, out)


class GroupsTest(parameterized.TestCase):
    # Each case has groups as XLA prints them, and what they mean.
    @parameterized.named_parameters(
        ("none", Message(), []),
        ("{{0,1},{2,3}}", listed([0, 1], [2, 3]), [[0, 1], [2, 3]]),
        (
            "{{0,3},{1,2}} of older versions",
            Message()
            .add(49, Message().set_integers(1, [0, 3]))
            .add(49, Message().set_integers(1, [1, 2])),
            [[0, 3], [1, 2]],
        ),
        ("[2,2]<=[4]", iota(2, 2, [4], [0]), [[0, 1], [2, 3]]),
        ("[2,2]<=[2,2]T(1,0)", iota(2, 2, [2, 2], [1, 0]), [[0, 2], [1, 3]]),
        ("mesh[2,2] {b}", mesh_axes([2, 2], [[1]]), [[0, 1], [2, 3]]),
        ("mesh[2,2] {b,a}", mesh_axes([2, 2], [[1], [0]]), [[0, 2, 1, 3]]),
        (
            "mesh[2,4] {b:(1)2}",
            mesh_axes([2, 4], [[1, 1, 2]]),
            [[0, 2], [1, 3], [4, 6], [5, 7]],
        ),
        (
            "mesh[2,4] {b:(2)2}",
            mesh_axes([2, 4], [[1, 2, 2]]),
            [[0, 1], [2, 3], [4, 5], [6, 7]],
        ),
        (
            "mesh[8] {a:(4)2,a:(1)2}",
            mesh_axes([8], [[0, 4, 2], [0, 1, 2]]),
            [[0, 4, 1, 5], [2, 6, 3, 7]],
        ),
        (
            "mesh[2,2], device_ids=(3,1,2,0) {b}",
            mesh_axes([2, 2], [[1]], order=[3, 1, 2, 0]),
            [[3, 1], [2, 0]],
        ),
        (
            "mesh[2,2], device_ids=([2,2]T(1,0)) {b}",
            mesh_axes([2, 2], [[1]], iota=([2, 2], [1, 0])),
            [[0, 2], [1, 3]],
        ),
    )
    def test_notation(self, proto, expected):
        self.assertEqual(groups.decode(proto), expected)

    def test_modes(self):
        # Two replicas of three partitions, on devices that are not in the order of their ids.
        proto = Message()
        for column in ([5, 2], [4, 1], [3, 0]):
            proto.add(3, Message().set_integers(1, column))
        module = Module(Message().add(15, proto).encode())
        channel, all_ids = {Instruction.CHANNEL_ID: 1}, {Instruction.GLOBAL_IDS: 1}
        for opcode, ids, fields, expected in (
            ("all-reduce", [[0, 5], [1, 2]], channel | all_ids, [[5, 0], [4, 3]]),
            ("all-reduce", [[0, 1]], {}, [[5, 2], [4, 1], [3, 0]]),
            ("all-reduce", [[0, 1]], channel, [[5, 4, 3, 2, 1, 0]]),
            ("all-to-all", [[2, 0]], channel, [[3, 5], [0, 2]]),
            # Without groups, all devices that the mode can combine form one group: here all six
            # devices, or the three partitions of a replica.
            ("all-reduce", [], all_ids, [[5, 4, 3, 2, 1, 0]]),
            ("all-to-all", [], channel, [[5, 4, 3], [2, 1, 0]]),
        ):
            call = listed(*ids)
            for field, value in fields.items():
                call.set(field, value)
            found = mock.Mock(opcode=opcode, instruction=Instruction(call))
            self.assertEqual(match.devices(module, found), expected)


class WireTest(parameterized.TestCase):
    @given(st.integers(-(2**63), 2**63 - 1))
    def test_integers(self, value):
        message = Message(Message().add(7, value).set_integers(9, [value, 1]).encode())
        self.assertEqual(message.get(7), value)
        self.assertEqual(message.integers(9), [value, 1])

    @parameterized.parameters(
        (0x7F, b"\x08\x7f"), (0x80, b"\x08\x80\x01"), (0x3FFF, b"\x08\xff\x7f")
    )
    def test_numbers_are_as_short_as_possible(self, value, expected):
        self.assertEqual(Message().add(1, value).encode(), expected)

    @given(st.binary(max_size=40))
    def test_any_bytes_are_a_message_or_an_error(self, data):
        try:
            message = Message(data)
        except wire.MalformedError:
            return
        # `data` may encode numbers in more bytes than they need, so only their values must stay.
        self.assertEqual(list(Message(message.encode()).items()), list(message.items()))

    def test_shapes(self):
        for made in (
            shape.Shape("float32", (), ()),
            shape.Shape("bool", (3, 0, 5), (0, 2, 1)),
            shape.Shape("bfloat16", (2, 3), (1, 0)).stacked(4),
        ):
            self.assertEqual(shape.decode(made.encode()), [made])

    def test_element_types(self):
        rules = ("bool", "pred"), ("float([84])_", r"f\1"), ("bfloat", "bf"), ("complex", "c")
        for dtype in shape.DTYPES.values():
            of_xla = dtype
            for old, new in (*rules, ("float", "f"), ("uint", "u"), ("int", "s")):
                of_xla = re.sub(f"^{old}", new, of_xla)
            text = f"HloModule m\nENTRY e {{ ROOT p = {of_xla}[3]{{0}} parameter(0) }}"
            read = Module(hlo_modules.serialized(text))
            (found,) = read.entry.root.shapes
            self.assertEqual(found, shape.Shape(dtype, (3,), (0,)))
            self.assertEqual(shape.decode(found.encode()), [found])

    def test_stacked_shapes(self):
        stacked = shape.Shape("int8", (2, 3, 5), (0, 2, 1)).stacked(4)
        self.assertEqual(stacked, shape.Shape("int8", (4, 2, 3, 5), (1, 3, 2, 0)))

    # Numbers of fields of LayoutProto: tiles, memory space, type of indices, type of pointers,
    # element size, physical shape, dynamic metadata, splits.
    @parameterized.parameters(6, 8, 9, 10, 11, 12, 15, 17)
    def test_layouts_that_are_irregular(self, field):
        plain = shape.Shape("int8", (3,), (0,)).encode()
        (layout,) = (value for number, _, value in plain.items() if number == 5)
        plain.set(5, Message(layout).set(field, 1))
        self.assertFalse(shape.decode(plain)[0].regular)

    @parameterized.parameters(
        ("bool", 24), ("int8", 24), ("bfloat16", 48), ("complex64", 192), ("int4", 24), ("", 0)
    )
    def test_bytes_of_shapes(self, dtype, expected):
        self.assertEqual(costs.size(shape.Shape(dtype, (4, 6), (1, 0))), expected)

    def test_attributes(self):
        attributes = {"a": 'tab\t, "~" \x7f', "b": np.int32(3), "c": np.array([1, 2], np.int64)}
        self.assertEqual(
            config.of(attributes),
            '{a = "tab\\09, \\22~\\22 \\7F", b = 3 : i32, c = array<i64: 1, 2>}',
        )
        new = config.of({"site": np.int64(-1)})
        self.assertTrue(config.is_new(new))
        numbered = config.numbered(new, 7)
        self.assertEqual(numbered, "{site = 7 : i64}")
        self.assertFalse(config.is_new(numbered))

    def test_rows(self):
        computation = mock.Mock(new_id=lambda: 2)
        builder = build.Builder(computation, Instruction(Message()))
        value = build.Value(1, shape.Shape("int8", (2, 3, 5), (1, 2, 0)))
        row = builder.row(value, 1)
        self.assertEqual(row.shape, shape.Shape("int8", (3, 5), (0, 1)))
        builder.finish([row])
        (_, (sliced, _)), _ = computation.replace.call_args
        parts = sliced.proto.messages(Instruction.SLICES)
        bounds = [tuple(part.get(field) for field in (1, 2, 3)) for part in parts]
        self.assertEqual(bounds, [(1, 2, 1), (0, 3, 1), (0, 5, 1)])


class ModuleTest(absltest.TestCase):
    def modules(self, function, *arguments, **options):
        """Returns the modules that XLA hands to a hook."""
        found = []
        stage = xla.PipelineStage.PRE_SCHEDULER
        jax.devices()
        xla.register_hlo_module_transformation(found.append, name="test", platforms="cpu")
        try:
            jax.jit(function, **options).lower(*arguments).compile()
        finally:
            xla.clear_hlo_module_transformation("test", stage, "cpu")
        return found

    def test_real_modules_are_kept(self):
        def function(x):
            y = jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ c) + i, x)
            return jnp.sort(y), jax.lax.cond(y[0, 0] > 0, jnp.sin, jnp.cos, y)

        for data in self.modules(function, np.ones((4, 4), np.float32), donate_argnums=0):
            module = Module(data)
            self.assertEqual(module.encode(), data)
            for computation, instruction in module.with_any((b"",)):
                self.assertTrue(instruction.opcode)
                computation.touch(instruction)
            self.assertEqual(module.encode(), data)

    def test_lines(self):
        def outer(x):
            return inner(x)

        def inner(x):
            return jnp.sort(x)

        for data in self.modules(outer, np.ones(9, np.float32)):
            module = Module(data)
            for _, instruction in module.with_any((b"sort",)):
                if instruction.opcode == "sort":
                    self.assertRegex(module.source_line(instruction), r"hlo_test.py:\d+ .*inner")
                    line = module.source_line(instruction, lambda file: "hlo_test" in file)
                    self.assertNotIn("hlo_test.py", line)
                    return
        self.fail("no sort")

    def test_ids_are_new(self):
        (data,) = self.modules(lambda x: x + 1, np.ones(9, np.float32))
        for computation in {computation for computation, _ in Module(data).with_any((b"",))}:
            ids = {i.id for i in computation.with_any((b"",))}
            made = {computation.new_id() for _ in range(3)}
            self.assertLen(made, 3)
            self.assertFalse(ids & made)
            self.assertEqual({i >> 32 for i in ids}, {i >> 32 for i in made})

    def test_instruction_fields(self):
        proto = Message().set(Instruction.OPCODE, "add").set(Instruction.ID, 5)
        instruction = Instruction(proto.set_integers(Instruction.OPERANDS, [3, 4]))
        self.assertEqual((instruction.opcode, instruction.id), ("add", 5))
        self.assertEqual(instruction.operands, [3, 4])


if __name__ == "__main__":
    absltest.main()
