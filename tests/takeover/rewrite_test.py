"""Modules with collectives, before and after the hook, in XLA's own text."""

import re

import jax
from absl.testing import absltest, parameterized
from hlo_modules import WORLD, all_reduce, check_pairs, module, rewritten

from jax_cxl import errors
from jax_cxl._job import lowered_programs
from jax_cxl._takeover import hook, survey
from jax_cxl._takeover.hlo.module import Module
from jax_cxl._takeover.hlo.wire import Message
from jax_cxl._takeover.hook import Decisions
from jax_cxl._takeover.world import World


class GroupsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("{{0,2},{1,3}}", (0, 1, 2, 3), "3, 1, 2, 0"),
        # The numbers in groups are positions in the device assignment, not device ids.
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
        with self.assertRaisesRegex(errors.InvalidCollectiveError, "device 3 has no rank"):
            rewritten(all_reduce("{}"), world=world, strict=True)

    def test_no_device_assignment(self):
        data = Message(module(all_reduce("{}"))).clear(15).encode()
        with self.assertRaisesRegex(errors.InvalidCollectiveError, "has not assigned"):
            hook.transform(data, lambda: WORLD, strict=True)


class CallTest(parameterized.TestCase):
    """What the calls contain, and which collectives stay with XLA."""

    def refused(self, body, error):
        with self.assertRaisesRegex(errors.InvalidCollectiveError, error):
            rewritten(body, strict=True)

    def test_layouts_of_operands(self):
        body = """ENTRY main { p = f32[3,2,5]{2,0,1} parameter(0)
        ROOT r = f32[3,2,5]{2,0,1} all-reduce(p), replica_groups={{0,2},{1,3}}, channel_id=1,
          use_global_device_ids=true, to_apply=add }"""
        after = rewritten(body, strict=True)
        self.assertIn("operand_layout_constraints={f32[3,2,5]{2,0,1}}", after)

    @parameterized.parameters("multiply(c, b)", "add(b, b)", "add(c, b)", "add(b, c)")
    def test_reductions_of_something_else(self, root):
        body = all_reduce("{}").replace("to_apply=add", "to_apply=other")
        other = f"""other {{ a = f32[] parameter(0)
        b = f32[] parameter(1)
        c = f32[] constant(2)
        ROOT sum = f32[] {root} }}
        """
        self.refused(other + body, "reduces by")

    @parameterized.parameters(
        ("all-gather(p), dimensions={0}, use_global_device_ids=true", "f4e2m1fn[16]{0}"),
        ("all-to-all(p), dimensions={0}", "f4e2m1fn[8]{0}"),
    )
    def test_packed_values(self, operation, result):
        body = f"""ENTRY main {{ p = f4e2m1fn[8]{{0}} parameter(0)
        ROOT r = {result} {operation}, replica_groups={{{{0,2}},{{1,3}}}}, channel_id=1 }}"""
        self.refused(body, "packed two to a byte")

    def test_what_stays_is_counted(self):
        before = lowered_programs.left.copy()
        self.assertIsNone(rewritten(all_reduce("{{0},{1,2,3}}")))
        self.assertEqual(list((lowered_programs.left - before).values()), [1])

    @parameterized.parameters(
        ("{}", True, "0, 1, 2, 3"),
        ("{}", False, ""),
        # With levels=None, the tuning table decides, and four ranks are too few for levels.
        ("{}", None, ""),
        # These groups lie within a process, or have one device of each process: no levels.
        ("{{0,1},{2,3}}", True, ""),
        ("{{0,2},{1,3}}", True, ""),
    )
    def test_levels(self, groups, levels, places):
        world = World(WORLD.rank_of, WORLD.process_of, local=True, levels=levels)
        after = rewritten(all_reduce(groups), world=world, strict=True)
        found = re.findall(r"places = array<i32(?:: )?(.*?)>, processes = (\d)", after)
        self.assertEqual(found, [(places, "2" if places else "0")])

    def test_permutations(self):
        body = """ENTRY main { p = f32[8]{0} parameter(0)
        ROOT r = f32[8]{0} collective-permute(p), source_target_pairs={{0,2},{2,3},{3,0}},
          channel_id=1 }"""
        after = rewritten(body, strict=True)
        found = re.search(r"groups = array<i32: (.*?)>.* sources = array<i32: (.*?)>", after)
        self.assertEqual(found.groups(), ("3, 2, 1, 0", "3, -1, 0, 2"))

    @parameterized.parameters(
        ("{{0},{1},{2},{3}}", "no data move: each group has one device"),
        ("{{0,1},{2,3}}", "its groups lie within one process"),
        ("{{0,2},{1,3}}", "jax_cxl.replace_collectives"),
    )
    def test_why_collectives_stay(self, groups, why):
        program = survey.of_module(module(all_reduce(groups)), WORLD, None, Decisions())
        (found,) = program.collectives
        self.assertEqual((found.through, found.ranks), (survey.XLA, 1 if "0}" in groups else 2))
        self.assertIn(why, found.why)

    @parameterized.parameters(False, True)
    def test_ragged_all_to_all(self, gpus):
        body = """ENTRY main { p = f32[5,2]{0,1} parameter(0)
        o = f32[7,2]{1,0} parameter(1)
        t = s32[8]{0} parameter(2)
        ROOT r = f32[7,2]{1,0} ragged-all-to-all(p, o, t, t, t, t), replica_groups={{0,1,2,3}},
          channel_id=1 }"""
        world = World(WORLD.rank_of, WORLD.process_of, gpus=gpus)
        after = rewritten(body, world=world, strict=True)
        self.assertIn("rows = array<i64: 5, 7, 2, 1>", after)
        self.assertIn("s32[4,8]{1,0} concatenate", after)
        # The scratch memory holds the number of the first wrong slice (8 bytes); a place for each
        # of 4 x 5 + 7 rows (4 bytes each); a mark for each of 5 rows (a byte each, rounded up to 8
        # bytes); and 2 slices for each pair of the 4 ranks (32 bytes each).
        scratch = 8 + 4 * (4 * 5 + 7) + 8 + 32 * 4 * 4 * 2
        self.assertEqual(re.findall(r"u8\[(\d+)\]", after), [str(scratch)] * gpus)


class PairsTest(parameterized.TestCase):
    """What XLA's scheduler for GPUs makes: starts, dones, and other work between them."""

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
        check_pairs(self, rewritten(body, strict=True), starts)

    def test_xla_computes_no_operand_anew(self):
        # If XLA computed the operand a second time, the done would get a different copy of it than
        # its start.
        body = """ENTRY main { p = f32[8]{0} parameter(0)
        n = f32[2,4]{1,0} negate(q)
        b = f32[8]{0} bitcast(n)
        s = f32[8]{0} all-reduce-start(b), replica_groups={{0,2},{1,3}}, channel_id=1,
          use_global_device_ids=true, to_apply=add
        ROOT d = f32[8]{0} all-reduce-done(s) }""".replace(
            "p = ", "q = f32[2,4]{1,0} parameter(1)\np = "
        )
        after = rewritten(body, strict=True)
        (start,) = [line for line in after.splitlines() if '"jax_cxl_start"' in line]
        self.assertRegex(start, r"control-predecessors=\{%?n\}")

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
