"""Modules with collectives, before and after the hook, in XLA's own text."""

import re

import jax
from absl.testing import absltest, parameterized

try:
    from jaxlib import _hlo
except ImportError:  # In JAX 0.12 it is a part of another module.
    from jaxlib import _jax as _hlo

from jax_cxl import errors
from jax_cxl._hlo.module import Module
from jax_cxl._hlo.wire import Message
from jax_cxl._takeover import hook
from jax_cxl._takeover.world import World

# Devices 0 and 1 belong to process 0, devices 2 and 3 to process 1; their ranks are others.
WORLD = World({0: 3, 1: 2, 2: 1, 3: 0}, {0: 0, 1: 0, 2: 1, 3: 1})

ADD = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}
"""


def module(body, devices=(0, 1, 2, 3), header="HloModule m, is_scheduled=true"):
    """Returns the serialized module of a text, whose partitions run on these devices."""
    data = _hlo.hlo_module_from_text(header + ADD + body).as_serialized_hlo_module_proto()
    assignment = Message().add(1, 1).add(2, len(devices))
    for device in devices:
        assignment.add(3, Message().set_integers(1, [device]))
    return Message(data).set(15, assignment).encode()


def text(data):
    return _hlo.HloModule.from_serialized_hlo_module_proto(data).to_string()


def rewritten(body, devices=(0, 1, 2, 3), world=WORLD, **options):
    """Returns the text of the module after the hook, None if that left it alone."""
    after = hook.transform(module(body, devices), lambda: world, **options)
    return None if after is None else text(after)


def all_reduce(groups, extra="channel_id=1, use_global_device_ids=true"):
    return (
        "ENTRY main { p = f32[8]{0} parameter(0)\n"
        f"ROOT r = f32[8]{{0}} all-reduce(p), replica_groups={groups}, {extra}, to_apply=add }}"
    )


class GroupsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("{{0,2},{1,3}}", (0, 1, 2, 3), "3, 1, 2, 0"),
        # Positions in the device assignment, not device ids.
        ("{{0,1},{2,3}}", (0, 2, 1, 3), "3, 1, 2, 0"),
        ("{{0,1,2,3}}", (3, 2, 1, 0), "0, 1, 2, 3"),
        ("{}", (0, 1, 2, 3), "3, 2, 1, 0"),
        ("[2,2]<=[2,2]T(1,0)", (0, 1, 2, 3), "3, 1, 2, 0"),
    )
    def test_ranks(self, groups, devices, ranks):
        after = rewritten(all_reduce(groups), devices)
        self.assertIn(f"groups = array<i32: {ranks}>", after)
        self.assertNotIn("all-reduce(", after)

    def test_groups_within_a_process(self):
        body = all_reduce("{{0,1},{2,3}}")
        self.assertIsNone(rewritten(body))
        local = World(WORLD.rank_of, WORLD.process_of, local=True)
        self.assertIn("jax_cxl_collective", rewritten(body, world=local))
        # On these devices the same groups span processes.
        self.assertIsNotNone(rewritten(body, devices=(0, 3, 1, 2)))

    def test_groups_of_different_sizes(self):
        body = all_reduce("{{0},{1,2,3}}")
        with self.assertLogs("jax_cxl", "WARNING"):
            self.assertIsNone(rewritten(body))
        with self.assertRaisesRegex(errors.InvalidCollectiveError, "different sizes"):
            rewritten(body, strict=True)

    def test_a_device_without_a_rank(self):
        world = World({0: 0, 1: 1, 2: 2}, WORLD.process_of)
        with self.assertRaisesRegex(errors.InvalidCollectiveError, "device 3 is not one of"):
            rewritten(all_reduce("{}"), world=world, strict=True)

    def test_no_device_assignment(self):
        data = Message(module(all_reduce("{}"))).clear(15).encode()
        with self.assertRaisesRegex(errors.InvalidCollectiveError, "which device"):
            hook.transform(data, lambda: WORLD, strict=True)


class PairsTest(parameterized.TestCase):
    """What XLA's scheduler for GPUs makes: starts, dones, and other work between them."""

    def check(self, after, starts):
        """The starts stand before the work and the dones behind it, and nothing else is there."""
        entry = after[after.index("ENTRY") :]
        targets = re.findall(r'custom_call_target="(jax_cxl_\w+)"| negate\(', entry)
        self.assertEqual(targets, ["jax_cxl_start"] * starts + [""] + ["jax_cxl_done"] * starts)
        self.assertIn("output_to_operand_aliasing={{}: (1, {})}", entry)
        for opcode in (" all-", "reduce-scatter-", "collective-", " async-", " copy(", "convert("):
            self.assertNotIn(opcode, entry)

    @parameterized.named_parameters(
        (
            "all_reduce",
            """ENTRY main { p = f32[8]{0} parameter(0)
            q = f32[4]{0} parameter(1)
            s = f32[8]{0} all-reduce-start(p), replica_groups={{0,2},{1,3}}, channel_id=1,
              use_global_device_ids=true, to_apply=add
            n = f32[4]{0} negate(q)
            d = f32[8]{0} all-reduce-done(s)
            ROOT t = (f32[8]{0}, f32[4]{0}) tuple(d, n) }""",
            1,
        ),
        (
            "combined_all_reduce",
            """ENTRY main { p = f32[8]{0} parameter(0)
            q = f32[4]{0} parameter(1)
            s = (f32[8]{0}, f32[4]{0}) all-reduce-start(p, q), replica_groups={{0,2},{1,3}},
              channel_id=1, use_global_device_ids=true, to_apply=add
            n = f32[4]{0} negate(q)
            d = (f32[8]{0}, f32[4]{0}) all-reduce-done(s)
            ROOT t = ((f32[8]{0}, f32[4]{0}), f32[4]{0}) tuple(d, n) }""",
            2,
        ),
        (
            "all_gather",
            """ENTRY main { p = f32[2,3]{1,0} parameter(0)
            q = f32[4]{0} parameter(1)
            s = (f32[2,3]{1,0}, f32[4,3]{1,0}) all-gather-start(p), dimensions={0},
              replica_groups={{0,2},{1,3}}, channel_id=1, use_global_device_ids=true
            n = f32[4]{0} negate(q)
            d = f32[4,3]{1,0} all-gather-done(s)
            ROOT t = (f32[4,3]{1,0}, f32[4]{0}) tuple(d, n) }""",
            1,
        ),
        (
            "collective_permute",
            """ENTRY main { p = f32[8]{0} parameter(0)
            q = f32[4]{0} parameter(1)
            s = (f32[8]{0}, f32[8]{0}) collective-permute-start(p),
              source_target_pairs={{0,2},{2,0}}, channel_id=1
            n = f32[4]{0} negate(q)
            d = f32[8]{0} collective-permute-done(s)
            ROOT t = (f32[8]{0}, f32[4]{0}) tuple(d, n) }""",
            1,
        ),
        (
            "combined_collective_permute",
            """ENTRY main { p = f32[8]{0} parameter(0)
            q = f32[4]{0} parameter(1)
            s = ((f32[8]{0}, f32[4]{0}), (f32[8]{0}, f32[4]{0})) collective-permute-start(p, q),
              source_target_pairs={{0,2},{2,0}}, channel_id=1
            n = f32[4]{0} negate(q)
            d = (f32[8]{0}, f32[4]{0}) collective-permute-done(s)
            ROOT t = ((f32[8]{0}, f32[4]{0}), f32[4]{0}) tuple(d, n) }""",
            2,
        ),
        (
            "combined_collective_permute_in_a_computation",
            """wrapped { v = f32[8]{0} parameter(0)
            w = f32[4]{0} parameter(1)
            ROOT x = (f32[8]{0}, f32[4]{0}) collective-permute(v, w),
              source_target_pairs={{0,2},{2,0}}, channel_id=1 }
            ENTRY main { p = f32[8]{0} parameter(0)
            q = f32[4]{0} parameter(1)
            s = ((f32[8]{0}, f32[4]{0}), (f32[8]{0}, f32[4]{0})) async-start(p, q),
              async_execution_thread="parallel", calls=wrapped
            n = f32[4]{0} negate(q)
            d = (f32[8]{0}, f32[4]{0}) async-done(s)
            ROOT t = ((f32[8]{0}, f32[4]{0}), f32[4]{0}) tuple(d, n) }""",
            2,
        ),
        (
            "reduce_scatter",
            """wrapped { w = f32[8]{0} parameter(0)
            ROOT x = f32[4]{0} reduce-scatter(w), dimensions={0}, replica_groups={{0,2},{1,3}},
              channel_id=1, use_global_device_ids=true, to_apply=add }
            ENTRY main { p = f32[8]{0} parameter(0)
            q = f32[4]{0} parameter(1)
            s = ((f32[8]{0}), f32[4]{0}) async-start(p), async_execution_thread="parallel",
              calls=wrapped
            n = f32[4]{0} negate(q)
            d = f32[4]{0} async-done(s)
            ROOT t = (f32[4]{0}, f32[4]{0}) tuple(d, n) }""",
            1,
        ),
        (
            "all_to_all",
            """wrapped { w = f32[3,2,5]{2,0,1} parameter(0)
            ROOT x = f32[3,2,5]{2,0,1} all-to-all(w), dimensions={1},
              replica_groups={{0,2},{1,3}}, channel_id=1 }
            ENTRY main { p = f32[3,2,5]{2,0,1} parameter(0)
            q = f32[4]{0} parameter(1)
            s = ((f32[3,2,5]{2,0,1}), f32[3,2,5]{2,0,1}) async-start(p),
              async_execution_thread="parallel", calls=wrapped
            n = f32[4]{0} negate(q)
            d = f32[3,2,5]{2,0,1} async-done(s)
            ROOT t = (f32[3,2,5]{2,0,1}, f32[4]{0}) tuple(d, n) }""",
            1,
        ),
    )
    def test_pair(self, body, starts):
        self.check(rewritten(body, strict=True), starts)

    def test_blocks_that_are_not_contiguous(self):
        body = """ENTRY main { p = f32[2,3]{1,0} parameter(0)
        s = (f32[2,3]{1,0}, f32[2,6]{1,0}) all-gather-start(p), dimensions={1},
          replica_groups={{0,2},{1,3}}, channel_id=1, use_global_device_ids=true
        ROOT d = f32[2,6]{1,0} all-gather-done(s) }"""
        with self.assertRaisesRegex(errors.InvalidCollectiveError, "a copy would be needed"):
            rewritten(body, strict=True)


class ScanTest(absltest.TestCase):
    def test_a_module_without_collectives_is_not_parsed(self):
        body = "ENTRY main { p = f32[8]{0} parameter(0)\nROOT n = f32[8]{0} negate(p) }"
        self.assertIsNone(hook.transform(module(body), self.fail))

    def test_module_name(self):
        self.assertEqual(Module(module(all_reduce("{}"))).name, "m")


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    absltest.main()
