"""Tensors of PyTorch. Without PyTorch, only reads into NumPy arrays are tested."""

import importlib.util
import unittest

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import store_harness as harness
from absl.testing import absltest

import jax_cxl

_HAS_TORCH = importlib.util.find_spec("torch") is not None


class IntoTest(harness.StoreTest):
    def setUp(self):
        super().setUp()
        self.w = np.arange(700_000, dtype=np.float32).reshape(700, 1000)
        self.store = self.enterContext(self.open())
        self.store.publish("a", {"w": jnp.asarray(self.w), "b": jnp.arange(5), "n": 1}, version=3)
        self.store.flush("a")

    def test_whole_arrays_and_parts(self):
        w, b = np.zeros((700, 1000), np.float32), np.zeros(5, np.int32)
        columns, rows = np.zeros((700, 250), np.float32), np.zeros((1000, 9), np.float32).T
        version, tree = self.store.read("a", into={"w": w, "b": b})
        self.assertEqual((version, set(tree)), (3, {"w", "b"}))
        self.assertIs(tree["w"], w)
        np.testing.assert_array_equal(w, self.w)
        np.testing.assert_array_equal(b, np.arange(5))
        into = {"w": (columns, np.s_[:, 250:500])}
        self.store.read("a", into=into)
        np.testing.assert_array_equal(columns, self.w[:, 250:500])
        self.store.read("a", into={"w": (rows, np.s_[-9:])})
        np.testing.assert_array_equal(rows, self.w[-9:])

    def test_what_does_not_fit_changes_nothing(self):
        w = np.zeros((700, 1000), np.float32)
        for other, problem in (
            ({"b": np.zeros(4, np.int32)}, r"b was saved as int32 with shape \(5,\)"),
            ({"b": np.zeros(5, np.int64)}, "not of int64"),
            ({"b": (np.zeros(5, np.int32), np.s_[:, :])}, "1 dimensions"),
            ({"x": np.zeros(5)}, "no array x"),
            ({"n": np.zeros(5)}, "no array n"),
        ):
            with self.assertRaisesRegex(jax_cxl.StoreError, problem):
                self.store.read("a", into={"w": w, **other})
            self.assertFalse(w.any())
        with self.assertRaisesRegex(TypeError, "without a step"):
            self.store.read("a", into={"w": (w, np.s_[::2])})
        with self.assertRaisesRegex(TypeError, r"into\['w'\] of type list"):
            self.store.read("a", into={"w": [1]})
        w.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "read-only"):
            self.store.read("a", into={"w": w})
        with self.assertRaisesRegex(ValueError, "leave one out"):
            self.store.read("a", {"b": np.zeros(5, np.int32)}, into={"b": np.zeros(5, np.int32)})


@unittest.skipUnless(_HAS_TORCH, "PyTorch is not installed: pip install torch")
class TorchTest(harness.StoreTest):
    def test_each_dtype(self):
        import torch

        bits = np.random.default_rng(0).integers(0, 256, 4096, np.uint8)
        names = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
        names += ("int8", "uint8", "int16", "int32", "int64", "complex64", "complex128")
        with self.open() as store:
            state = {n: torch.from_numpy(bits.copy()).view(getattr(torch, n)) for n in names}
            state["bool"] = torch.from_numpy(bits > 9)
            state["scalar"] = torch.tensor(2.5, dtype=torch.bfloat16)
            state["turned"] = torch.from_numpy(bits.copy()).reshape(64, 64).T
            state["conjugate"] = state["complex64"].conj()
            store.publish("a", state)
            for x in state.values():
                x.zero_()  # `publish` has copied it.
            store.flush("a")
            _, arrays = store.read("a")
            for name in names:
                self.assertEqual(arrays[name].dtype, np.dtype(getattr(ml_dtypes, name, name)))
                self.assertEqual(arrays[name].tobytes(), bits.tobytes(), name)
            np.testing.assert_array_equal(arrays["turned"], bits.reshape(64, 64).T)
            np.testing.assert_array_equal(arrays["conjugate"], arrays["complex64"].conj())
            into = {n: torch.empty_like(state[n]) for n in (*names, "bool", "scalar")}
            _, found = store.read("a", into=into)
            for name in names:
                self.assertIs(found[name], into[name])
                got = into[name].view(torch.uint8).numpy()
                self.assertEqual(got.tobytes(), bits.tobytes(), name)
            self.assertEqual(into["scalar"].item(), 2.5)
            with store.view("a") as view:
                x = torch.from_dlpack(view.dlpack("bfloat16"))
                self.assertEqual(x.data_ptr(), view.tree["bfloat16"].ctypes.data)

    def test_a_module(self):
        import torch

        with self.open() as store:
            published, other = (torch.nn.Linear(300, 1000) for _ in range(2))
            store.publish("a", published.state_dict())
            store.flush("a")
            own = other.state_dict()
            store.read("a", into=own)
            for name, x in published.state_dict().items():
                self.assertTrue(torch.equal(x, other.state_dict()[name]), name)
            half = torch.empty(500, 300)
            store.read("a", into={"weight": (half, np.s_[500:])})
            self.assertTrue(torch.equal(half, published.weight[500:]))

    def test_jax_reads_what_a_trainer_in_torch_publishes(self):
        import torch

        with self.open() as store:
            module = torch.nn.Linear(300, 1000).bfloat16()
            store.publish("a", {"step": 1, "module": module.state_dict()})
            store.flush("a")
            like = {"weight": jnp.zeros((1000, 300), jnp.bfloat16)}
            _, tree = store.read("a", {"step": 0, "module": like})
            self.assertIsInstance(tree["module"]["weight"], jax.Array)
            found = np.asarray(tree["module"]["weight"].astype(jnp.float32))
            np.testing.assert_array_equal(found, module.weight.detach().float().numpy())

    def test_only_what_has_changed(self):
        import torch

        with self.open() as store:
            published = torch.nn.Sequential(*(torch.nn.Linear(700, 700) for _ in range(3)))
            other = torch.nn.Sequential(*(torch.nn.Linear(700, 700) for _ in range(3)))
            store.publish("a", published.state_dict())
            store.flush("a")
            last = store.read("a", into=other.state_dict())
            with torch.no_grad():
                published[1].weight[5, 5] += 1
                other[2].weight[1, 1] = 3  # PyTorch counts this.
            store.publish("a", published.state_dict())
            store.flush("a")
            damaged = other[0].weight.detach().numpy()
            damaged[100, 100] = 7  # PyTorch does not know it. So the block is not read again.
            last = store.read("a", into=last)
            self.assertEqual(damaged[100, 100], 7)
            damaged[100, 100] = published[0].weight[100, 100].item()
            for name, x in published.state_dict().items():
                self.assertTrue(torch.equal(x, other.state_dict()[name]), name)
            with self.assertRaisesRegex(ValueError, "leave one out"):
                store.read("a", {"0.bias": np.zeros(700, np.float32)}, into=last)
            with torch.inference_mode():
                made = torch.empty(700, 700)
            last = store.read("a", into={"0.weight": made})
            last = store.read("a", into=last)
            self.assertTrue(torch.equal(made, published[0].weight))

    def test_tensors_that_are_refused(self):
        import torch

        with self.open() as store:
            for x in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
                with self.assertRaisesRegex(TypeError, "cannot be used"):
                    store.publish("a", {"x": x})
                with self.assertRaisesRegex(TypeError, "into.*cannot be used"):
                    store.read("a", into={"x": x})


if __name__ == "__main__":
    absltest.main()
