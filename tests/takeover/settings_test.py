"""JAX_CXL_EARLY_BYTES, and the part of the cache's keys that says how programs are taken over."""

import os
from unittest import mock

import jax
import jax.extend
import job
import numpy as np
from absl.testing import absltest, parameterized
from jax._src import compilation_cache, compiler

import jax_cxl
from jax_cxl._takeover import install, setting


class EarlyBytesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("", 256 << 20), ("0", 0), ("4096", 4096), ("1GiB", 1 << 30), ("off", None)
    )
    def test_values(self, text, expected):
        with mock.patch.dict(os.environ, {setting.EARLY_VARIABLE: text}):
            self.assertEqual(setting.early_bytes(), expected)

    @parameterized.parameters("OFF", "-1", "1.5GiB", "256mib", " ", "none")
    def test_other_values_are_refused(self, text):
        with (
            mock.patch.dict(os.environ, {setting.EARLY_VARIABLE: text}),
            self.assertRaisesRegex(ValueError, "it may be a size such as 256MiB, or off"),
        ):
            setting.early_bytes()


class JobTest(parameterized.TestCase):
    @parameterized.parameters(
        # JAX logs what an entry point raises, and goes on.
        ("loud", "ValueError: JAX_CXL_EARLY_BYTES='loud': it may be a size"),
        ("off", "JAX_CXL_EARLY_BYTES is off here and 268435456 on process 0. Set the same in all"),
    )
    def test_a_process_with_another_value(self, value, message):
        ended = job.run("early_bytes.py", value, environment={"JAX_CXL_REPLACE_COLLECTIVES": "1"})
        self.assertNotEqual(ended.returncode, 0)
        self.assertNotIn("the sum is", ended.stdout)
        self.assertIn(message, ended.stderr)

    def test_equal_values_in_other_words(self):
        ended = job.run(
            "early_bytes.py", "256MiB", environment={"JAX_CXL_REPLACE_COLLECTIVES": "1"}
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stdout.count("the sum is 28.0"), 2)


class KeyTest(absltest.TestCase):
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

    def test_the_code_that_changes_programs(self):
        before = self.key()
        with mock.patch.object(install, "code", lambda: "another"):
            self.assertNotEqual(self.key(), before)
        self.assertIn(install.code(), before)

    def test_order_of_the_devices(self):
        backend, devices = jax.extend.backend.get_backend(), np.array(jax.devices())
        module = jax.jit(lambda x: x).lower(1).compiler_ir()
        # Without an order of the devices, as JAX has the options in the keys of GPUs.
        options = compiler.get_compile_options(num_replicas=1, num_partitions=devices.size)

        def key(order):
            return compilation_cache.get_cache_key(module, devices[order], options, backend)

        there, back = slice(None), slice(None, None, -1)
        with jax_cxl.replace_collectives(local=True):
            jax.jit(lambda x: x + 1)(1)  # The first compilation extends the keys.
            self.assertEqual(key(there), key(there))
            self.assertNotEqual(key(there), key(back))
        self.assertEqual(key(there), key(back))


if __name__ == "__main__":
    absltest.main()
