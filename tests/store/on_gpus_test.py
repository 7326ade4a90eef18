"""What GPUs copy out of a store, with a CPU device in place of the GPU."""

import concurrent.futures
import math
import os
import pathlib
import tempfile
import threading
import time
from unittest import mock

import host_as_gpu
import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import PartitionSpec as P

import jax_cxl
from jax_cxl._store.memory import devices
from jax_cxl._store.reading import on_gpus, restoring

_MIB = 1 << 20


class OnGpusTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
        folder = self.enter_context(
            tempfile.TemporaryDirectory(prefix="jax_cxl_test_store.", dir=parent)
        )
        self.path = pathlib.Path(folder, "a")
        self.store = self.open("")
        self.enter_context(host_as_gpu.reads_on_gpus())

    def open(self, options: str, paths: int = 1) -> jax_cxl.Store:
        names = ",".join([str(self.path)] + [f"{self.path}{n}" for n in range(1, paths)])
        store = jax_cxl.Store(f"file:{names}?size={96 * _MIB}{options}")
        self.addCleanup(store.close)
        self.copies = store._names.made()._copies = host_as_gpu.Copies()
        return store

    def publish(self, version: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(version)
        tree = {
            # Two arrays that share a block, an array of whole blocks, and one that is too small for
            # a copy by the GPU.
            "a": rng.standard_normal((3, 250_000), np.float32),
            "b": rng.integers(0, 9, (5 * _MIB // 8,), np.int64).astype(np.int32),
            "c": rng.integers(0, 255, (4 * _MIB,), np.uint8),
            "small": rng.standard_normal(7, np.float32),
        }
        self.store.publish("w", jax.tree.map(jax.numpy.asarray, tree), version=version)
        self.store.flush("w")
        return tree

    def like(self, tree):
        where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return {k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where) for k, x in tree.items()}

    def damage(self, data: np.ndarray, at: int) -> None:
        wanted = data.tobytes()[at : at + 64]
        places = {path: path.read_bytes().find(wanted) for path in self.path.parent.iterdir()}
        ((path, found),) = [(path, at) for path, at in places.items() if at > 0]
        with path.open("r+b") as file:
            file.seek(found)
            byte = file.read(1)
            file.seek(found)
            file.write(bytes([byte[0] ^ 1]))

    def test_threads_register_the_memory_once(self):
        store = jax_cxl.Store(f"file:{self.path}?size={96 * _MIB}")
        self.addCleanup(store.close)
        made, together = [], threading.Barrier(3)

        def create(*arguments):
            del arguments
            made.append(host_as_gpu.Copies())
            time.sleep(0.05)
            return made[-1]

        def use(_):
            together.wait()
            return store._names.devices().copies

        cuda = mock.Mock()
        cuda.load().DeviceCopies.create = create
        with (
            mock.patch.object(devices.platforms, "CUDA", cuda),
            concurrent.futures.ThreadPoolExecutor(3) as threads,
        ):
            self.assertEqual(list(threads.map(use, range(3))), made * 3)
        self.assertLen(made, 1)

    def test_equal(self):
        tree = self.publish(0)
        version, got = self.store.read("w", self.like(tree))
        self.assertEqual(version, 0)
        for name, x in tree.items():
            np.testing.assert_array_equal(np.asarray(got[name]), x)
        self.assertGreater(self.copies.checked, 5)

    def test_damage_inside(self):
        tree = self.publish(0)
        self.damage(tree["c"], 2 * _MIB)
        with self.assertRaisesRegex(jax_cxl.StoreError, "block .* is damaged"):
            self.store.read("w", self.like(tree), version=0)

    def test_damage_in_a_shared_block(self):
        tree = self.publish(0)
        self.damage(tree["a"], tree["a"].nbytes - 64)
        with self.assertRaisesRegex(jax_cxl.StoreError, "block .* is damaged"):
            self.store.read("w", self.like(tree), version=0)

    def test_the_version_before_a_damaged_one(self):
        first = self.publish(0)
        second = self.publish(1)
        self.damage(second["c"], 100)
        version, got = self.store.read("w", self.like(first))
        self.assertEqual(version, 0)
        np.testing.assert_array_equal(np.asarray(got["c"]), first["c"])

    @parameterized.parameters(
        # Mesh and spec with which a tree is saved, and those with which it is read.
        ((4,), P("x"), (1,), P()),
        ((4,), P("x"), (2,), P("x")),
        ((2,), P("x"), (4,), P("x")),
        ((4,), P(), (1,), P()),
        ((4,), P(), (2,), P("x")),
        ((4,), P(None, "x"), (1,), P()),
        ((4,), P(None, "x"), (2,), P("x")),
        ((2,), P("x"), (4,), P(None, "x")),
        ((2, 2), P("x", "y"), (1,), P()),
        ((2, 2), P("y", "x"), (4,), P(None, "x")),
        ((2, 2), P(("x", "y")), (2, 2), P("y", "x")),
        ((2, 2), P("y"), (4,), P(None, "x")),
    )
    @pytest.mark.sample(3)
    def test_other_shardings(self, saved, saved_spec, asked, asked_spec):
        def sharding(shape, spec):
            devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
            return jax.NamedSharding(jax.sharding.Mesh(devices, ("x", "y")[: len(shape)]), spec)

        rng = np.random.default_rng(0)
        tree = {
            # The rows have 5,008 bytes, no multiple of 64. So most pieces begin inside of a line of
            # 64 bytes.
            "odd": rng.integers(0, 2**31 - 1, (4 * 631, 4 * 313), np.int32),
            "bytes": rng.integers(0, 255, (4 * 1009, 4 * 523), np.uint8),
        }
        own = sharding(saved, saved_spec)
        self.store.publish("w", jax.tree.map(lambda x: jax.device_put(x, own), tree))
        self.store.flush("w")
        other = sharding(asked, asked_spec)
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=other), tree)
        with mock.patch.object(restoring.Reader, "read", side_effect=AssertionError("by the host")):
            _, got = self.store.read("w", like)
        for name, x in tree.items():
            self.assertEqual(got[name].sharding, other)
            np.testing.assert_array_equal(np.asarray(got[name]), x)
        self.assertGreater(self.copies.checked, 3)

    def test_damage_in_a_piece(self):
        mesh = jax.sharding.Mesh(jax.devices()[:4], ("x",))
        x = np.random.default_rng(0).integers(0, 255, (16 * _MIB,), np.uint8)
        self.store.publish("w", {"x": jax.device_put(x, jax.NamedSharding(mesh, P("x")))})
        self.store.flush("w")
        self.damage(x, 9 * _MIB)
        with self.assertRaisesRegex(jax_cxl.StoreError, "block .* is damaged"):
            self.store.read("w", self.like({"x": x}), version=0)

    def test_groups_of_copies(self):
        self.enter_context(mock.patch.object(on_gpus, "_GROUP_BYTES", 5 * _MIB))
        tree = self.publish(0)
        _, got = self.store.read("w", self.like(tree))
        for name, x in tree.items():
            np.testing.assert_array_equal(np.asarray(got[name]), x)

    def test_small_arrays_are_read_by_the_host(self):
        tree = self.publish(0)
        self.store.read("w", {"small": self.like(tree)["small"]})
        self.assertEqual(self.copies.checked, 0)

    @parameterized.parameters(("&coherence=flush", 1), ("", 3))
    def test_memory_without_coherence_or_of_several_paths_is_read_by_the_host(self, options, paths):
        self.path = self.path.with_name(f"of {paths} ")
        self.store = self.open(options, paths)
        tree = self.publish(0)
        _, got = self.store.read("w", self.like(tree))
        np.testing.assert_array_equal(np.asarray(got["c"]), tree["c"])
        self.assertEqual(self.copies.checked, 0)


if __name__ == "__main__":
    absltest.main()
