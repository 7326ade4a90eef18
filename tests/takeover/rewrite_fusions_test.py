"""Collectives in fusions, some of them started, as XLA makes them between GPUs of one process."""

import re

import jax
from absl.testing import absltest, parameterized
from hlo_modules import WORLD, check_pairs, rewritten

from jax_cxl import errors
from jax_cxl._takeover.world import World


def fused(wrapped, call, after=""):
    """Returns a module in which XLA has put an all-reduce into a fusion.

    XLA does so between GPUs of one process. The body of the fusion is `wrapped`, and `call` calls
    the fusion. `after` has later instructions.
    """
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
    """Collectives between GPUs with NVLink, which XLA puts into fusions."""

    def test_a_fusion(self):
        after = rewritten(fused(SUM, PLAIN), strict=True)
        self.assertIn("jax_cxl_collective", after)
        self.assertNotIn("fusion(", after)
        self.assertNotIn("all-reduce(", after)

    def test_a_fusion_that_is_started(self):
        body = fused(SUM, STARTED, "d = f32[8]{0} async-done(s)").replace("ENTRY", WRAPPED)
        after = rewritten(body, strict=True)
        check_pairs(self, after, 1)
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
        # Collectives are numbered in the order in which the program runs them, although the text
        # has a fusion's computation before its caller.
        body = fused(SUM, PLAIN).replace(
            "negate(q)",
            "all-reduce(q), replica_groups={{0,2},{1,3}},"
            " channel_id=2, use_global_device_ids=true, to_apply=add",
        )
        after = rewritten(body, strict=True)
        entry = after[after.index("ENTRY") :]
        counts = re.findall(r"count = (\d+).*?site = (\d+)", entry)
        self.assertEqual(counts, [("8", "0"), ("4", "1")])


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    absltest.main()
