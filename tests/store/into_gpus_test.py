"""Reads into tensors of PyTorch on GPUs, with tensors of the CPU in place of those on GPUs."""

import importlib.util
import unittest
from unittest import mock

import host_as_gpu
import jax.numpy as jnp
import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._job import platforms
from jax_cxl._store.memory import catalog
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading import into_gpus

_MIB = harness.MIB


@unittest.skipUnless(
    importlib.util.find_spec("torch"), "PyTorch is not installed: pip install torch"
)
class IntoGpusTest(harness.StoreTest):
    def setUp(self):
        super().setUp()
        import host_as_torch_gpu
        import torch

        self.torch = torch
        self.gpu = self.enterContext(host_as_torch_gpu.tensors_on_gpus())
        self.enterContext(mock.patch.object(into_gpus, "_GROUP_BYTES", _MIB))
        rng = np.random.default_rng(0)
        self.tree = {
            "large": rng.integers(0, 9, (5, _MIB // 4 + 16), np.int32),
            "other": rng.integers(0, 9, (1000, 1000), np.int32),
            "small": np.float32(2.5),
        }

    def publish(self, options="", sums=True, **changes):
        self.where += options
        store = self.enterContext(self.open())
        self.store = store
        devices = store._names.made()
        self.sums = devices._copies = host_as_gpu.Copies()
        if not sums:
            devices._gpus = frozenset()  # The memory is registered for other GPUs.
        self.change(**changes)

    def change(self, **changes):
        self.tree |= changes
        self.store.publish("a", {k: jnp.asarray(x) for k, x in self.tree.items()})
        self.store.flush("a")

    def into(self):
        return {k: self.torch.zeros(x.shape, dtype=self.of(x)) for k, x in self.tree.items()}

    def of(self, x):
        return getattr(self.torch, x.dtype.name)

    def assert_read(self, into):
        for name, x in self.tree.items():
            self.assertEqual(into[name].numpy().tobytes(), x.tobytes(), name)

    @parameterized.parameters(True, False)
    def test_whole_arrays(self, sums):
        self.publish(sums=sums)
        into = self.into()
        version, found = self.store.read("a", into=into)
        self.assertEqual(version, 0)
        self.assertIs(found["large"], into["large"])
        self.assert_read(into)
        self.assertEqual(self.gpu.copied, sum(x.nbytes for x in self.tree.values()))
        self.assertTrue(self.gpu.events[-1].waited)
        self.assertEqual(self.gpu.ended, len(self.gpu.enqueued))
        if sums:
            self.assertGreaterEqual(self.sums.checked, 4)
        else:
            self.assertEqual(self.sums.checked, 0)

    def test_only_what_has_changed(self):
        self.publish()
        last = self.store.read("a", into=self.into())
        large = self.tree["large"].copy()
        large[2, 7] += 1
        self.change(large=large)
        self.gpu.copied = self.sums.checked = 0
        last = self.store.read("a", into=last)
        self.assert_read(last.tree)
        self.assertEqual(self.gpu.copied, _MIB)
        self.assertEqual(self.sums.checked, 1)
        self.gpu.copied = 0
        last = self.store.read("a", into=last)
        self.assertEqual(self.gpu.copied, 0)

    def test_a_tensor_that_the_program_has_changed_is_read_again(self):
        self.publish()
        last = self.store.read("a", into=self.into())
        last.tree["other"][3] = 0
        self.gpu.copied = 0
        last = self.store.read("a", into=last)
        self.assert_read(last.tree)
        self.assertEqual(self.gpu.copied, last.tree["other"].nbytes)

    def test_parts(self):
        self.publish()
        rows = self.torch.zeros(2, _MIB // 4 + 16, dtype=self.torch.int32)
        columns = self.torch.zeros(1000, 30, dtype=self.torch.int32)
        into = {"large": (rows, np.s_[2:4]), "other": (columns, np.s_[:, 10:40])}
        last = self.store.read("a", into=into)
        np.testing.assert_array_equal(rows.numpy(), self.tree["large"][2:4])
        np.testing.assert_array_equal(columns.numpy(), self.tree["other"][:, 10:40])
        self.change(large=self.tree["large"] + 1)
        self.gpu.copied = 0
        self.store.read("a", into=last)
        np.testing.assert_array_equal(rows.numpy(), self.tree["large"][2:4])
        # The end of `large` and the start of `other` share a block, which has changed.
        self.assertEqual(self.gpu.copied, rows.nbytes + columns.nbytes)
        turned = self.torch.zeros(1000, 1000, dtype=self.torch.int32).T
        self.store.read("a", into={"other": turned})
        np.testing.assert_array_equal(turned.numpy(), self.tree["other"])

    def test_without_the_module_for_cuda(self):
        self.publish()
        self.store._names.made()._copies = None
        absent = mock.Mock(side_effect=jax_cxl.CxlError("no CUDA module"))
        into = self.into()
        with mock.patch.object(platforms.Platform, "load", absent):
            self.store.read("a", into=into)
        self.assert_read(into)
        self.assertEqual(self.sums.checked, 0)

    @parameterized.parameters("&coherence=flush", "&coherence=uncached")
    def test_memory_without_coherence(self, options):
        self.publish(options)
        into = self.into()
        self.store.read("a", into=into)
        self.assert_read(into)
        self.assertEqual(self.sums.checked, 0)

    @parameterized.product(sums=(True, False), at=(0, 2 * _MIB))
    def test_damage(self, sums, at):
        self.publish(sums=sums)
        before = dict(self.tree)
        self.change(large=self.tree["large"][::-1].copy() + 1)
        data = self.path.read_bytes()
        start = data.find(self.tree["large"].tobytes()) + at
        with self.path.open("r+b") as file:
            file.seek(start)
            file.write(bytes([data[start] ^ 1]))
        with self.assertRaisesRegex(jax_cxl.StoreError, "block .* is damaged"):
            self.store.read("a", into=self.into(), version=1)
        into = self.into()
        version, _ = self.store.read("a", into=into)
        self.assertEqual(version, 0)
        self.tree = before
        self.assert_read(into)

    def test_a_version_that_is_overwritten_meanwhile_is_chosen_again(self):
        self.publish()
        version, wait = Section.version, into_gpus.Copies.wait
        # Stands still once, so long that the lease ends. The check and the reader then ask whether
        # the version is there.
        gone = iter((True, True))

        def stand_still(copies):
            wait(copies)
            self.enterContext(
                mock.patch.object(
                    Section,
                    "version",
                    lambda section, number: None if next(gone, False) else version(section, number),
                )
            )

        into = self.into()
        with mock.patch.object(into_gpus.Copies, "wait", stand_still):
            self.store.read("a", into=into, version=0)
        self.assertFalse(next(gone, False), "the reader has looked twice")
        self.assert_read(into)

    def test_an_error_leaves_nothing_known(self):
        self.publish()
        last = self.store.read("a", into=self.into())
        self.change(large=self.tree["large"] + 1)
        with (
            mock.patch.object(self.sums, "checksums", side_effect=RuntimeError("of a GPU")),
            self.assertRaisesRegex(RuntimeError, "of a GPU"),
        ):
            self.store.read("a", into=last)
        self.gpu.copied = 0
        last = self.store.read("a", into=last)
        self.assert_read(last.tree)
        self.assertEqual(self.gpu.copied, sum(x.nbytes for x in self.tree.values()))

    @parameterized.parameters(True, False)
    def test_without_blocking(self, sums):
        self.publish(sums=sums)
        before = dict(self.tree)
        last = self.store.read("a", into=self.into(), non_blocking=True)
        self.assertEqual(last.version, 0)
        # The version stays until the copies have been checked, however many follow.
        for add in range(4):
            self.change(large=before["large"] + add + 1)
        self.assertFalse(last.tree["large"].any())
        last.wait()
        ends = self.gpu.current.waits_for
        self.assertTrue(ends and ends[-1] is self.gpu.events[-1])
        self.assertFalse(last.tree["large"].any())
        last.check()
        newest, self.tree = self.tree, before
        self.assert_read(last.tree)
        last.check()
        # Without check(), the next read checks.
        again = self.store.read("a", into=last, non_blocking=True)
        last = self.store.read("a", into=again)
        self.tree = newest
        self.assert_read(last.tree)

    def test_copies_that_nobody_checks_keep_their_version_until_they_end(self):
        self.publish()
        last = self.store.read("a", into=self.into(), non_blocking=True)
        tree = last.tree
        before = dict(self.tree)
        for add in range(4):
            self.change(large=before["large"] + add + 1)
        del last
        self.tree = before
        self.assert_read(tree)
        self.assertFalse(self.leases())
        with self.assertRaisesRegex(ValueError, "non_blocking=True needs tensors"):
            self.store.read("a", non_blocking=True)

    def leases(self):
        section = Section.find(self.store._names.devices(), "a")
        areas = range(section.geometry.areas)
        return [
            who for area in areas for who in catalog.holders(section.devices, section.entry, area)
        ]

    def test_damage_that_check_finds(self):
        self.publish()
        last = self.store.read("a", into=self.into(), non_blocking=True)
        last.check()
        self.assertFalse(self.leases())
        self.change(large=self.tree["large"] + 1)
        last = self.store.read("a", into=last, non_blocking=True)
        self.assertTrue(self.leases())
        self.gpu.run()
        with mock.patch.object(self.sums, "checksums", lambda of, _: [[0] * len(of[0][1])]):
            for _ in range(2):
                with self.assertRaisesRegex(jax_cxl.StoreError, "block .* is damaged"):
                    last.check()
        self.assertFalse(self.leases())
        self.gpu.copied = 0
        last = self.store.read("a", into=last)
        self.assert_read(last.tree)
        self.assertEqual(self.gpu.copied, sum(x.nbytes for x in self.tree.values()))

    def test_a_tensor_of_another_shape_than_before(self):
        self.publish()
        last = self.store.read("a", into=self.into())
        last.tree["other"].resize_(1000, 999)
        with self.assertRaisesRegex(jax_cxl.StoreError, "other was saved as int32 with shape"):
            self.store.read("a", into=last)

    def test_what_does_not_fit_changes_nothing(self):
        self.publish()
        into = self.into() | {"other": self.torch.zeros(3, dtype=self.torch.int32)}
        with self.assertRaisesRegex(jax_cxl.StoreError, "other was saved as int32 with shape"):
            self.store.read("a", into=into)
        self.assertEqual((self.gpu.copied, self.gpu.events), (0, []))


if __name__ == "__main__":
    absltest.main()
