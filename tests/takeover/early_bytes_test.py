"""Which instructions may move in a scheduled module, and a limit on the bytes that this takes."""

import gc
import re
import weakref

import hlo_modules
import jax
from absl.testing import absltest, parameterized

from jax_cxl._takeover import hook
from jax_cxl._takeover.early import Early
from jax_cxl._takeover.hlo.module import Module
from jax_cxl._takeover.hlo.wire import Message
from jax_cxl._takeover.schedule import costs
from jax_cxl._takeover.world import World
from lab.fuzz.early import check

WORLD = World({0: 0, 1: 1}, {0: 0, 1: 1}, gpus=True)
MIB = 1 << 20
# An array of 1 MiB.
A = "f32[512,512]{1,0}"
PRODUCT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"

MODULE = """HloModule m, is_scheduled=true, replica_count=1, num_partitions=2
two { f = A parameter(0)
  g = A negate(f)
  h = A sine(f)
  ROOT t = (A, A) tuple(g, h) }
condition { c = (A, A) parameter(0)
  ROOT no = pred[] constant(false) }
"""


def module(body):
    return hlo_modules.serialized(re.sub(r"\bA\b", A, MODULE + body))


class KindsTest(absltest.TestCase):
    """The kinds of instructions that the order of a schedule distinguishes."""

    def test_nothing_keeps_a_module(self):
        read = Module(module("ENTRY main { p = A parameter(0)\n ROOT n = A negate(p) }"))
        entry = read.entry
        found = Early(read).nodes(entry, read.sequence(entry))
        gone = weakref.ref(read)
        del read, entry, found
        gc.collect()
        self.assertIsNone(gone())

    def test_what_has_a_product(self):
        body = """product { a = A parameter(0)
              ROOT b = A dot(a, a), PRODUCT }
            ENTRY main { p = A parameter(0)
              d = A dot(p, p), PRODUCT
              e = A fusion(d), kind=kOutput, calls=product
              g = (A, A) fusion(e), kind=kLoop, calls=two
              w = (A, A) while(g), condition=condition, body=same
              ROOT n = A negate(e) }""".replace("ENTRY", LOOP).replace("PRODUCT", PRODUCT)
        read = Module(module(body))
        instructions = map(read.entry.instruction, read.sequence(read.entry))
        found = [i.name for i in instructions if costs.Costs(read).products(read.entry, i)]
        self.assertEqual(found, ["d", "e"])


LOOP = """same { c0 = (A, A) parameter(0)
  x = A get-tuple-element(c0), index=0
  m = A dot(x, x), PRODUCT
  ROOT c1 = (A, A) tuple(m, x) }
ENTRY"""

# An early start hides the gather of this layer behind a product. NESTED has the layer in a loop,
# and another gather outside of the loop.
LAYER = """q = f32[256,512]{1,0} slice(x), slice={[0:256],[0:512]}
  h = A dot(x, x), PRODUCT
  k = A dot(h, h), PRODUCT
  s = (f32[256,512]{1,0}, A) all-gather-start(q), dimensions={0}, channel_id=1,
    replica_groups={{0,1}}, use_global_device_ids=true
  d = A all-gather-done(s)
  z = A dot(k, d), PRODUCT
"""
NESTED = f"""body {{ c0 = (A, A) parameter(0)
  x = A get-tuple-element(c0), index=0
  y = A get-tuple-element(c0), index=1
  {LAYER}
  ROOT n = (A, A) tuple(z, y) }}
ENTRY main {{ p = A parameter(0)
  q0 = A copy(p)
  o = A copy(p)
  t = (A, A) tuple(q0, o)
  l = (A, A) while(t), condition=condition, body=body
  x1 = A get-tuple-element(l), index=1
  e = f32[256,512]{{1,0}} slice(o), slice={{[0:256],[0:512]}}
  st = (f32[256,512]{{1,0}}, A) all-gather-start(e), dimensions={{0}}, channel_id=2,
    replica_groups={{{{0,1}}}}, use_global_device_ids=true
  d1 = A all-gather-done(st)
  a = A dot(x1, d1), PRODUCT
  ROOT r = A negate(a) }}""".replace("PRODUCT", PRODUCT)


class BoundTest(parameterized.TestCase):
    # Each case has a limit on the memory, in MiB, and how many starts move within it. An early
    # start takes 1 MiB more memory in the loop, and 1.5 MiB more in the loop's caller.
    @parameterized.parameters((0.5, 0), (1.5, 1), (2.25, 1), (3, 2))
    def test_loops_and_their_caller_share_the_bytes(self, mib, moved):
        limit = int(mib * MIB)
        assignment = Message().add(1, 1).add(2, 2)
        for device in range(2):
            assignment.add(3, Message().set_integers(1, [device]))
        data = Message(module(NESTED)).set(15, assignment).encode()
        texts = [
            hlo_modules.text(
                hook.transform(data, lambda: WORLD, strict=True, early_bytes=early_bytes)
            )
            for early_bytes in (None, limit)
        ]
        result = check.compare(*texts, limit)
        self.assertEmpty(result.errors)
        self.assertEqual(result.moved, moved)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    absltest.main()
