"""JAX_CXL_EARLY_BYTES, and the part of the cache's keys that depends on the takeover."""

import os
import pathlib
import tempfile
from unittest import mock

import jax
import job
import numpy as np
from absl.testing import absltest, parameterized
from jax._src import cache_key, compilation_cache

import jax_cxl
from jax_cxl._job import setting, variables
from jax_cxl._takeover import install, start, survey


class EarlyBytesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("", 256 << 20), ("0", 0), ("4096", 4096), ("1GiB", 1 << 30), ("off", None)
    )
    def test_values(self, text, expected):
        with mock.patch.dict(os.environ, {variables.EARLY_BYTES: text}):
            self.assertEqual(setting.early_bytes(), expected)

    @parameterized.parameters("OFF", "-1", "1.5GiB", "256mib", " ", "none")
    def test_other_values_are_refused(self, text):
        with (
            mock.patch.dict(os.environ, {variables.EARLY_BYTES: text}),
            self.assertRaisesRegex(ValueError, "it must be a size such as 256MiB, or off"),
        ):
            setting.early_bytes()


class JobTest(parameterized.TestCase):
    @parameterized.parameters(
        # An entry point of JAX raises this error, so JAX logs it and goes on.
        ("loud", "ValueError: JAX_CXL_EARLY_BYTES='loud': it must be a size"),
        (
            "off",
            r"JAX_CXL_EARLY_BYTES is (off here and 268435456|268435456 here and off) on process",
        ),
    )
    def test_a_process_with_another_value(self, value, message):
        ended = job.run("early_bytes.py", value, environment={"JAX_CXL_REPLACE_COLLECTIVES": "1"})
        self.assertNotEqual(ended.returncode, 0)
        self.assertNotIn("the sum is", ended.stdout)
        self.assertRegex(ended.stderr, message)

    def test_equal_values_in_other_words(self):
        ended = job.run(
            "early_bytes.py", "256MiB", environment={"JAX_CXL_REPLACE_COLLECTIVES": "1"}
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stdout.count("the sum is 28.0"), 2)


class WorldTest(parameterized.TestCase):
    def world(self, platform, levels):
        wanted = mock.Mock(local=True, levels=levels)
        running = mock.Mock(rank_of_device={0: 1}, generation=2)
        with (
            mock.patch.object(jax, "default_backend", lambda: platform),
            mock.patch.object(start.lifecycle, "current", lambda: running),
        ):
            return start.world(wanted)

    @parameterized.parameters(
        ("cpu", None, None), ("cpu", True, True), ("gpu", None, False), ("gpu", False, False)
    )
    def test_levels(self, platform, levels, expected):
        world = self.world(platform, levels)
        self.assertEqual((world.levels, world.gpus), (expected, platform == "gpu"))
        self.assertEqual((world.rank_of, world.generation, world.local), ({0: 1}, 2, True))

    def test_no_levels_on_gpus(self):
        with self.assertRaisesRegex(NotImplementedError, "levels=True. works for CPU devices"):
            self.world("gpu", True)


class KeyTest(absltest.TestCase):
    def test_programs_that_are_explained(self):
        self.assertEqual(survey.cache_key(), "")
        with survey.request("3"):
            self.assertEqual(survey.cache_key(), " explain 3")

    def key(self, **options):
        with jax_cxl.replace_collectives(local=True, **options):
            return install._cache_key([0, 1])

    def test_settings_that_change_programs(self):
        self.assertEqual(self.key(), self.key())
        keys = (
            self.key(),
            self.key(early_bytes=None),
            self.key(early_bytes=0),
            self.key(strict=True),
        )
        self.assertLen(set(keys), 4)

    def test_programs_within_a_process_do_not_wait_for_the_job(self):
        with mock.patch.object(start, "world", side_effect=AssertionError("waits")):
            with jax_cxl.replace_collectives():
                keys = {install._cache_key(devices) for devices in ([0], [0, 1], [1, 0])}
            self.assertLen(keys, 3)
            with self.assertRaisesRegex(AssertionError, "waits"):
                self.key()

    def test_the_code_that_changes_programs(self):
        before = self.key()
        with mock.patch.object(install, "code", lambda: "another"):
            self.assertNotEqual(self.key(), before)
        self.assertIn(install.code(), before)

    def test_each_file_changes_the_key(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            found = set()
            for file in ("", "_lowering/a.py", "_takeover/b.py", "_takeover/hlo/c.py"):
                if file:
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file).write_text("x = 1")
                with mock.patch.object(install, "__file__", str(folder / "_takeover/install.py")):
                    found.add(install.code.__wrapped__())
            self.assertLen(found, 4)


class CachedProgramTest(absltest.TestCase):
    """Programs from the persistent compilation cache, with keys as JAX makes them for GPUs.

    JAX does not put the order of a program's devices into these keys, because XLA's own collectives
    need it only when a program is loaded. Collectives of the pool need it in the key.
    """

    def setUp(self):
        super().setUp()
        hash_options = cache_key._hash_serialized_compile_options
        self.enter_context(
            mock.patch.object(
                cache_key,
                "_hash_serialized_compile_options",
                lambda state, options, **_: hash_options(
                    state, options, strip_device_assignment=True
                ),
            )
        )
        folder = self.enter_context(tempfile.TemporaryDirectory())
        self.addCleanup(compilation_cache.reset_cache)
        for name, value in {
            "jax_compilation_cache_dir": folder,
            "jax_persistent_cache_min_compile_time_secs": 0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }.items():
            self.addCleanup(jax.config.update, name, getattr(jax.config, name))
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        self.hits = 0
        jax.monitoring.register_event_listener(self.count)
        self.addCleanup(jax.monitoring.unregister_event_listener, self.count)

    def count(self, event, **_):
        self.hits += event == "/jax/compilation_cache/cache_hits"

    def gather(self, order):
        mesh = jax.sharding.Mesh(np.array(jax.devices())[order], ("i",))
        return jax.jit(
            jax.shard_map(
                lambda x: jax.lax.all_gather(x, "i", tiled=True),
                mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"),
            )
        )(np.arange(8.0))  # fmt: skip

    def test_order_of_the_devices(self):
        with jax_cxl.replace_collectives(local=True):
            for order, hits in (slice(None), 0), (slice(None, None, -1), 0), (slice(None), 1):
                self.hits = 0
                np.testing.assert_array_equal(self.gather(order), np.tile(np.arange(8.0), 8))
                self.assertEqual(self.hits, hits)


if __name__ == "__main__":
    absltest.main()
