"""Modules with collectives, before and after the hook, in XLA's own text."""

import re

import jax
from absl.testing import absltest, parameterized

try:
    from jaxlib import _hlo
except ImportError:  # In JAX 0.12 it is a part of another module.
    from jaxlib import _jax as _hlo

from jax_cxl import errors
from jax_cxl._job.counts import counts
from jax_cxl._takeover import hook, survey
from jax_cxl._takeover.decisions import Decisions
from jax_cxl._takeover.hlo.module import Module
from jax_cxl._takeover.hlo.wire import Message
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
        with self.assertRaisesRegex(errors.InvalidCollectiveError, "does not assign"):
            hook.transform(data, lambda: WORLD, strict=True)


class CallTest(parameterized.TestCase):
    """What the calls say, and what stays with XLA."""

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
        before = counts.left.copy()
        self.assertIsNone(rewritten(all_reduce("{{0},{1,2,3}}")))
        self.assertEqual(list((counts.left - before).values()), [1])

    @parameterized.parameters(
        ("{}", True, "0, 1, 2, 3"),
        ("{}", False, ""),
        # Too few ranks, says the table.
        ("{}", None, ""),
        # Within a process, and one device of each process.
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
        # Where each row of 4 x 5 and 7 goes, 5 marks in words of 4, and 2 slices of each two ranks.
        scratch = 8 + 4 * (4 * 5 + 7) + 8 + 32 * 4 * 4 * 2
        self.assertEqual(re.findall(r"u8\[(\d+)\]", after), [str(scratch)] * gpus)


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

    def test_xla_computes_no_operand_anew(self):
        # Else the done would get another copy of the operand than its start.
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


def fused(wrapped, call, after=""):
    """An all-reduce that XLA has put into a fusion, as it does between GPUs of one process."""
    return f"""kernel {{ {wrapped} }}
    ENTRY main {{ p = f32[8]{{0}} parameter(0)
    q = f32[4]{{0}} parameter(1)
    {call}
    n = f32[4]{{0}} negate(q)
    {after}
    ROOT t = (f32[8]{{0}}, f32[4]{{0}}) tuple(d, n) }}"""


SUM = """a = f32[8]{0} parameter(0)
    ROOT r = f32[8]{0} all-reduce(a), replica_groups={{0,2},{1,3}}, channel_id=1,
      use_global_device_ids=true, to_apply=add"""
PLAIN = "d = f32[8]{0} fusion(p), kind=kCustom, calls=kernel"
STARTED = """s = ((f32[8]{0}), f32[8]{0}) async-start(p), async_execution_thread="parallel",
      calls=wrapped"""
WRAPPED = """wrapped { a = f32[8]{0} parameter(0)
      ROOT f = f32[8]{0} fusion(a), kind=kCustom, calls=kernel }
    ENTRY"""


class FusionTest(parameterized.TestCase):
    """Collectives between GPUs with NVLink, of which XLA makes fusions."""

    def test_a_fusion(self):
        after = rewritten(fused(SUM, PLAIN), strict=True)
        self.assertIn("jax_cxl_collective", after)
        self.assertNotIn("fusion(", after)
        self.assertNotIn("all-reduce(", after)

    def test_a_fusion_that_is_started(self):
        body = fused(SUM, STARTED, "d = f32[8]{0} async-done(s)").replace("ENTRY", WRAPPED)
        after = rewritten(body, strict=True)
        PairsTest.check(self, after, 1)
        self.assertNotIn("fusion(", after)

    def test_a_fusion_within_a_process(self):
        body = fused(SUM, PLAIN).replace("{{0,2},{1,3}}", "{{0,1},{2,3}}")
        self.assertIsNone(rewritten(body, strict=True))
        local = World(WORLD.rank_of, WORLD.process_of, local=True)
        self.assertIn("jax_cxl_collective", rewritten(body, world=local, strict=True))

    @parameterized.parameters(
        SUM.replace("ROOT r", "b") + "\nROOT n = f32[8]{0} negate(b)",
        SUM.replace("all-reduce(a)", "all-reduce(b)").replace(
            "ROOT", "b = f32[8]{0} negate(a)\nROOT"
        ),
    )
    def test_a_fusion_with_other_operations_stays(self, wrapped):
        body = fused(wrapped, PLAIN)
        self.assertIsNone(rewritten(body))
        with self.assertRaisesRegex(errors.InvalidCollectiveError, "all-reduce in m .* together"):
            rewritten(body, strict=True)

    def test_calls_beside_a_fusion_are_numbered(self):
        # In the order of the program, though the computation of a fusion comes before its caller.
        body = fused(SUM, PLAIN).replace(
            "negate(q)",
            "all-reduce(q), replica_groups={{0,2},{1,3}},"
            " channel_id=2, use_global_device_ids=true, to_apply=add",
        )
        after = rewritten(body, strict=True)
        entry = after[after.index("ENTRY") :]
        counts = re.findall(r"count = (\d+).*?site = (\d+)", entry)
        self.assertEqual(counts, [("8", "0"), ("4", "1")])


def layer(before, after, more=""):
    """Two products; the second one needs a gathered matrix, whose start is late."""
    return f"""{before} {{
    {after}
    q = f32[1024,2048]{{1,0}} copy(p)
    h = f32[2048,2048]{{1,0}} dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
    s = (f32[1024,2048]{{1,0}}, f32[2048,2048]{{1,0}}) all-gather-start(q), dimensions={{0}},
      replica_groups={{{{0,2}},{{1,3}}}}, channel_id=1, use_global_device_ids=true{more}
    d = f32[2048,2048]{{1,0}} all-gather-done(s)
    y = f32[2048,2048]{{1,0}} dot(h, d), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"""


PARAMETERS = """p = f32[1024,2048]{1,0} parameter(0)
    x = f32[2048,2048]{1,0} parameter(1)"""
MAIN = layer("ENTRY main", PARAMETERS) + "\nROOT r = f32[2048,2048]{1,0} add(y, h) }"
LOOP = (
    layer(
        "body",
        """state = (f32[1024,2048]{1,0}, f32[2048,2048]{1,0}, s32[]) parameter(0)
    p = f32[1024,2048]{1,0} get-tuple-element(state), index=0
    x = f32[2048,2048]{1,0} get-tuple-element(state), index=1
    i = s32[] get-tuple-element(state), index=2""",
    )
    + """
    z = f32[2048,2048]{1,0} add(y, h)
    ROOT next = (f32[1024,2048]{1,0}, f32[2048,2048]{1,0}, s32[]) tuple(p, z, i) }
  condition { c = (f32[1024,2048]{1,0}, f32[2048,2048]{1,0}, s32[]) parameter(0)
    ROOT no = pred[] constant(false) }
  ENTRY main { a = (f32[1024,2048]{1,0}, f32[2048,2048]{1,0}, s32[]) parameter(0)
    ROOT w = (f32[1024,2048]{1,0}, f32[2048,2048]{1,0}, s32[]) while(a), condition=condition,
      body=body }"""
)


class EarlyTest(parameterized.TestCase):
    """Starts that stand earlier than XLA's scheduler has them."""

    def order(self, body, **options):
        after = rewritten(body, strict=True, **options)
        pattern = r"%?(\S+) = \S+ (?:dot|copy)\(|custom_call_target=\"jax_cxl_(\w+)"
        found = re.findall(pattern, after)
        return [name.lstrip("%") or target for name, target in found]

    @parameterized.parameters(MAIN, LOOP)
    def test_a_start_moves_before_a_product(self, body):
        self.assertEqual(self.order(body), ["q", "h", "start", "done", "y"])
        early = self.order(body, early_bytes=64 << 20)
        self.assertEqual(early, ["q", "start", "h", "done", "y"])

    def test_a_start_stays_behind_its_operand(self):
        body = MAIN.replace("copy(p)", "copy(k)").replace(
            "s = (f32", "k = f32[1024,2048]{1,0} slice(h), slice={[0:1024],[0:2048]}\ns = (f32"
        )
        lines = body.split("\n")
        (copy,) = [line for line in lines if "copy(k)" in line]
        lines.remove(copy)
        place = next(i for i, line in enumerate(lines) if "s = (f32" in line)
        lines.insert(place, copy)
        early = self.order("\n".join(lines), early_bytes=64 << 20)
        self.assertEqual(early, ["h", "q", "start", "done", "y"])

    def test_a_start_stays_behind_what_controls_it(self):
        body = layer("ENTRY main", PARAMETERS, ", control-predecessors={h}")
        body += "\nROOT r = f32[2048,2048]{1,0} add(y, h) }"
        early = self.order(body, early_bytes=64 << 20)
        self.assertEqual(early, ["q", "h", "start", "done", "y"])

    def test_a_start_stays_where_memory_ends(self):
        # The gathered matrix takes 16 MiB, and the first product needs the most memory.
        body = MAIN.replace("dot(x, x)", "dot(k, l)").replace(
            "h =", "k = f32[2048,2048]{1,0} copy(x)\nl = f32[2048,2048]{1,0} copy(x)\nh ="
        )
        late, early = ["q", "k", "l", "h", "start"], ["q", "start", "k", "l", "h"]
        self.assertEqual(self.order(body, early_bytes=15 << 20)[:5], late)
        self.assertEqual(self.order(body, early_bytes=16 << 20)[:5], early)

    def test_an_operand_in_a_tuple_bypasses_it(self):
        body = MAIN.replace("copy(p)", "copy(e)").replace(
            "q =",
            """t = (f32[1024,2048]{1,0}, f32[2048,2048]{1,0}) tuple(p, h)
            e = f32[1024,2048]{1,0} get-tuple-element(t), index=0
            q =""",
        )
        lines = body.split("\n")
        (product,) = [line for line in lines if " h = " in line]
        lines.remove(product)
        place = next(i for i, line in enumerate(lines) if " tuple(p, h)" in line)
        lines.insert(place, product)
        body = "\n".join(lines)
        self.assertEqual(self.order(body), ["h", "q", "start", "done", "y"])
        early = self.order(body, early_bytes=64 << 20)
        self.assertEqual(early, ["q", "start", "h", "done", "y"])
        for early_bytes, operand in ((None, "e"), (64 << 20, "p")):
            after = rewritten(body, strict=True, early_bytes=early_bytes)
            self.assertIn(f"copy(%{operand})", after)

    def test_a_result_that_leaves_the_computation_stays(self):
        body = MAIN.replace("ROOT r = f32[2048,2048]{1,0} add(y, h)", "ROOT r = TYPE tuple(d, y)")
        body = body.replace("TYPE", "(f32[2048,2048]{1,0}, f32[2048,2048]{1,0})")
        early = self.order(body, early_bytes=64 << 20)
        self.assertEqual(early, ["q", "h", "start", "done", "y"])

    @parameterized.parameters(
        ("negate(a)", True),
        # Processes may have other names and source lines.
        ('negate(a), metadata={op_name="scatter" source_file="custom-call.py"}', True),
        ("fusion(a), kind=kLoop, calls=inner", False),
        ("fusion(a), kind=kLoop, calls=harmless", True),
    )
    def test_fusions_that_write_in_place_stay(self, instruction, moves):
        body = """inner { a = f32[1024,2048]{1,0} parameter(0)
          i = s32[] constant(0)
          ROOT u = f32[1024,2048]{1,0} dynamic-update-slice(a, a, i, i) }
        harmless { a = f32[1024,2048]{1,0} parameter(0)
          ROOT s = f32[1024,2048]{1,0} sine(a) }
        outer { a = f32[1024,2048]{1,0} parameter(0)
          ROOT n = f32[1024,2048]{1,0} INSTRUCTION }
        """ + MAIN.replace("copy(p)", "fusion(f), kind=kLoop, calls=outer").replace(
            "q =", "f = f32[1024,2048]{1,0} copy(p)\nq ="
        )
        lines = body.replace("INSTRUCTION", instruction).split("\n")
        (fusion,) = [line for line in lines if "calls=outer" in line]
        lines.remove(fusion)
        lines.insert(next(i for i, line in enumerate(lines) if "s = (f32" in line), fusion)
        after = rewritten("\n".join(lines), strict=True, early_bytes=64 << 20)
        entry = after[after.index("ENTRY") :]
        self.assertEqual(entry.index("calls=") < entry.index(" dot("), moves)

    def test_a_module_that_is_not_scheduled_stays(self):
        data = module(MAIN, header="HloModule m")
        texts = [text(hook.transform(data, lambda: WORLD, early_bytes=b)) for b in (None, 1 << 30)]
        self.assertEqual(*texts)


class ScanTest(absltest.TestCase):
    def test_a_module_without_collectives_is_not_parsed(self):
        body = "ENTRY main { p = f32[8]{0} parameter(0)\nROOT n = f32[8]{0} negate(p) }"
        self.assertIsNone(hook.transform(module(body), self.fail))

    def test_module_name(self):
        self.assertEqual(Module(module(all_reduce("{}"))).name, "m")


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    absltest.main()
