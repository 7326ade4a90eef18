"""`jax_cxl.explain` and `JAX_CXL_LOG=info`: which collectives go through the pool, and why."""

import dataclasses

import hlo_modules
import jax
import jax.numpy as jnp
import job
import numpy as np
from absl.testing import absltest, parameterized
from jax import lax

import jax_cxl
from jax_cxl._job import configuration
from jax_cxl._lowering import contract
from jax_cxl._takeover import survey
from jax_cxl._takeover.hook import Decisions
from jax_cxl._takeover.world import World

_P = jax.P


def _both(x):
    return jax_cxl.psum(x, "i") + lax.pmax(x, "i")


def _mapped(body, in_specs=None, check_vma=True):
    mesh = jax.make_mesh(
        (4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4]
    )
    return jax.shard_map(
        body,
        mesh=mesh,
        in_specs=in_specs or _P("i"),
        out_specs=_P() if check_vma else _P("i"),
        check_vma=check_vma,
    )


def _found(program):
    return [(each.name, each.through) for each in program.collectives]


class ExplainTest(parameterized.TestCase):
    def test_functions_of_jax_cxl_and_of_jax(self):
        program = jax_cxl.explain(_mapped(_both), jnp.arange(8.0))
        self.assertCountEqual(_found(program), [("psum", "pool"), ("all-reduce", "XLA")])
        for each in program.collectives:
            self.assertEqual((each.ranks, each.result), (4, "float32[2]"))
            self.assertRegex(each.line, r"explain_test\.py:\d+ \(_both\)")
        (xla,) = (each for each in program.collectives if each.through == "XLA")
        self.assertEqual(xla.why, "its groups lie within one process")

    def test_table_shows_the_first_of_many_results(self):
        results = "float32[4], float32[2,3], int32[]"
        one = survey.Collective("all-reduce", results, 2, "", "pool", "why")
        two = dataclasses.replace(one, result="float32[4], int32[]")
        text = str(survey.Program("jit_step", (one, two)))
        self.assertIn("all-reduce  float32[4] and 2 more  2 ", text)
        self.assertIn("all-reduce  float32[4], int32[]    2 ", text)

    def test_what_is_taken_over(self):
        with jax_cxl.replace_collectives(local=True):
            program = jax_cxl.explain(_mapped(_both), jnp.arange(8.0))
        self.assertCountEqual(_found(program), [("psum", "pool"), ("all-reduce", "pool")])
        self.assertIn("2 of 2 collectives go through the pool", str(program))

    def test_what_cannot_be_taken_over_says_why(self):
        groups = [[0, 1, 2], [3]]
        uneven = _mapped(lambda x: lax.psum(x, "i", axis_index_groups=groups), check_vma=False)
        with (
            jax_cxl.replace_collectives(local=True),
            self.assertLogs("jax_cxl", "WARNING"),
        ):
            program = jax_cxl.explain(uneven, jnp.arange(8.0))
        ((name, through),) = _found(program)
        self.assertEqual((name, through), ("all-reduce", "XLA"))
        self.assertIn("its groups have different sizes", program.collectives[0].why)

    def test_the_sums_of_gradients(self):
        def loss(w, x):
            total = _mapped(lambda w, x: jax_cxl.psum((w * x).sum(), "i"), (_P(), _P("i")))
            return total(w, x)

        program = jax_cxl.explain(jax.grad(loss), 2.0, jnp.arange(8.0))
        self.assertIn(("all-reduce", "XLA"), _found(program))

    @parameterized.parameters(*contract.CALL_TARGETS)
    def test_every_target_of_a_call(self, target):
        text = f"""HloModule m
ENTRY e {{
  p = f32[4] parameter(0)
  ROOT c = f32[4] custom-call(p), custom_call_target="{target}"
}}"""
        data = hlo_modules.serialized(text)
        program = survey.of_module(data, World({}, {}, gpus=True), None, Decisions())
        self.assertEqual([each.through for each in program.collectives], ["pool"])

    def test_it_does_not_run_and_does_not_count(self):
        jitted = jax.jit(_mapped(_both))
        before = jax.block_until_ready(jitted(jnp.arange(8.0)))
        calls = jax_cxl.stats().calls
        self.assertLen(jax_cxl.explain(jitted, jnp.arange(8.0)).collectives, 2)
        self.assertLen(jax_cxl.explain(jitted, jnp.arange(8.0)).collectives, 2)
        self.assertEqual(jax_cxl.stats().calls, calls)
        np.testing.assert_array_equal(jitted(jnp.arange(8.0)), before)

    def test_no_collectives(self):
        self.assertEmpty(jax_cxl.explain(lambda x: x + 1, jnp.arange(8.0)).collectives)


class LogTest(parameterized.TestCase):
    def run_job(self, **environment):
        return job.run("explained.py", environment=environment, quick=False)

    def test_ranks_and_programs(self):
        ended = self.run_job(JAX_CXL_LOG="info")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        for rank in range(2):
            self.assertRegex(
                ended.stderr,
                rf"\[{rank}\] jax_cxl: INFO: rank {rank} of 2: .* pool shm:, \d+ MiB, 1 pool "
                r"devices, coherence coherent; slots: \d+ of \d+ bytes; tuning table: built in",
            )
            self.assertIn(f"[{rank}] jax_cxl: INFO: jit_step: 1 of 2 collectives go", ended.stderr)
        self.assertRegex(
            ended.stderr, r"all-reduce +float32\[4\] +2 +\S+:\d+ \(\S*<lambda>\) +XLA +.* off"
        )
        self.assertRegex(ended.stderr, r"psum +float32\[4\] +2 +\S+:\d+ \(\S*<lambda>\) +pool ")

    def test_with_replaced_collectives(self):
        ended = self.run_job(JAX_CXL_LOG="info", JAX_CXL_REPLACE_COLLECTIVES="1")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stderr.count("jit_step: 2 of 2 collectives go"), 2, ended.stderr)

    def test_nothing_is_printed_by_default(self):
        self.assertNotIn("jax_cxl: INFO", self.run_job().stderr)

    def test_other_values_are_refused(self):
        with self.assertRaisesRegex(ValueError, "JAX_CXL_LOG must be info or warning"):
            configuration.from_environment({"JAX_CXL_LOG": "loud"})


if __name__ == "__main__":
    absltest.main()
