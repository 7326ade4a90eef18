"""Starts that the hook moves before a computation, in XLA's own text."""

import re

import jax
from absl.testing import absltest, parameterized
from hlo_modules import WORLD, module, rewritten, text

from jax_cxl._takeover import hook


def layer(before, after, more=""):
    """Returns the text of two products and a gather, which starts only after the first product.

    The second product needs the gathered matrix. `before` and `after` are the text before and after
    the brace that opens the computation. `more` has further attributes of the start.
    """
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
    """Starts that come earlier than in XLA's schedule."""

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
        # The memory is fullest at the first product. An early start adds the gathered matrix there,
        # which takes 16 MiB.
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
        # Processes may differ in names and source lines, so these must not matter.
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


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    absltest.main()
