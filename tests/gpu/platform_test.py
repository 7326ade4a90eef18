"""Which devices can be ranks, and the errors for other devices."""

import dataclasses
import importlib.util
import types
from unittest import mock

import jax
import ops_harness as harness
from absl.testing import absltest, parameterized

from jax_cxl import _core, errors
from jax_cxl._job import configuration, lifecycle, platforms, start_gpus, tuning_table
from jax_cxl._job.ending import program_errors
from jax_cxl._job.pool import pool_uri
from jax_cxl.ops import public as ops


def device(platform, version):
    client = types.SimpleNamespace(platform_version=version)
    return types.SimpleNamespace(platform=platform, client=client)


class PlatformTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # When jax_cxl starts on GPUs, it adds a source of errors to this list. Here it adds the
        # source to a copy of the list, because later tests must not see it.
        sources = list(program_errors._sources)
        self.enterContext(mock.patch.object(program_errors, "_sources", sources))

    def test_known(self):
        self.assertIs(platforms.of(jax.devices()[0]), platforms.CPU)
        cuda = device("gpu", "PJRT C API\ncuda 13000")
        self.assertIs(platforms.of(cuda), platforms.CUDA)

    @parameterized.parameters(
        ("gpu", "PJRT C API\nrocm 60300", "is rocm"), ("tpu", "libtpu version 0.0.20", "is tpu")
    )
    def test_unknown(self, platform, version, message):
        with self.assertRaisesRegex(errors.CxlError, message):
            platforms.of(device(platform, version))

    @parameterized.parameters("tpu", "rocm")
    def test_lowering_for_unknown(self, platform):
        program = harness.program(lambda x: ops.psum(x, "i"), check_vma=True)
        with self.assertRaisesRegex(NotImplementedError, f"psum runs between.*not on {platform}"):
            program.trace(harness.values(2)).lower(lowering_platforms=(platform,))

    @absltest.skipIf(importlib.util.find_spec("jax_cxl._cuda"), "built with CUDA")
    def test_without_the_cuda_module(self):
        with self.assertRaisesRegex(errors.CxlError, "(?s)built without its CUDA module.*nvcc"):
            platforms.CUDA.load()

    def test_mesh_of_another_platform(self):
        self.enterContext(
            mock.patch.object(
                lifecycle,
                "_running",
                dataclasses.replace(lifecycle.ensure_started(), platform=platforms.CUDA),
            )
        )
        with self.assertRaisesRegex(ValueError, "has cpu devices, but the ranks are the cuda"):
            harness.run(lambda x: ops.ppermute(x, "i", [(0, 1)]), harness.values(2))

    def test_start_of_gpus(self):
        cuda = mock.Mock()
        core = mock.Mock()
        self.enterContext(mock.patch.object(start_gpus, "_core", core))
        config = configuration.Config(slot_bytes=4096, num_slots=4)
        tuning = _core.parse_tuning('{"tuning": {"flush_threads": 2, "flush_piece_bytes": 65536}}')
        start_gpus.start(cuda, [3], config, tuning, gpu_writes_memory=True)
        cuda.start.assert_called_once_with(
            *(core.runtime.return_value, [3]),
            slot_bytes=4096,
            num_slots=4,
            warn_after=config.warn_after,
            timeout=config.timeout,
            flush_threads=2,
            flush_piece_bytes=65536,
            gpu_writes_memory=True,
        )

    def test_all_processes_raise_if_one_cannot_start_its_gpus(self):
        cuda, core = mock.Mock(), mock.Mock()
        self.enterContext(mock.patch.object(start_gpus, "_core", core))
        self.enterContext(mock.patch.object(jax, "process_count", lambda: 2))
        arguments = [0], configuration.Config(), tuning_table.load(None), False
        core.exchange.return_value = [b"", b""]
        start_gpus.start(cuda, *arguments)
        core.exchange.return_value = [b"", b"CUDA cannot register"]
        with self.assertRaisesRegex(errors.PoolError, "process 1 .*: CUDA cannot register"):
            start_gpus.start(cuda, *arguments)
        # The process with the problem tells the others, and then raises its own error.
        cuda.start.side_effect = errors.InvalidPoolError("no memory")
        with self.assertRaisesRegex(errors.InvalidPoolError, "^no memory$"):
            start_gpus.start(cuda, *arguments)
        told = [call.args[-1] for call in core.exchange.call_args_list]
        self.assertEqual(told, [b"", b"", b"no memory"])

    def test_errors_of_cuda_have_our_reason(self):
        lifecycle.ensure_started()  # Errors have our classes from then on.
        before = len(program_errors._sources)
        cuda = mock.Mock()
        cuda.failure.return_value = None
        self.enterContext(mock.patch.object(start_gpus, "_core", mock.Mock()))
        config = configuration.Config()
        for _ in range(2):
            start_gpus.start(cuda, [0], config, tuning_table.load(None), False)
        self.assertLen(program_errors._sources, before + 1)
        text = "INTERNAL: CUDA error: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"
        self.assertNotIsInstance(jax.errors.JaxRuntimeError(text), errors.CxlError)
        cuda.failure.return_value = ("PEER_LOST", "rank 1 is gone")
        error = jax.errors.JaxRuntimeError(text)
        self.assertIsInstance(error, errors.PeerLostError)
        self.assertIsInstance(error, jax.errors.JaxRuntimeError)
        self.assertIn("rank 1 is gone", str(error))
        self.assertNotIsInstance(jax.errors.JaxRuntimeError("out of memory"), errors.CxlError)

    def test_pool_of_automatic_size(self):
        spec = pool_uri.parse(None)
        self.assertEqual(spec.sized(4, platforms.CPU.rank_bytes), spec.sized(4))
        self.assertGreater(spec.sized(4, platforms.CUDA.rank_bytes).bytes, 4 * 64 << 20)


if __name__ == "__main__":
    absltest.main()
