"""Reads into tensors of PyTorch on a GPU."""

import pathlib
import sys
import unittest

import numpy as np
from absl.testing import absltest, parameterized

import jax_cxl

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "helpers"))
import shared_folder


def _missing() -> str:
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed: pip install torch"
    return "" if torch.cuda.is_available() else "PyTorch sees no GPU here"


@unittest.skipIf(_missing(), _missing())
class TorchOnGpuTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        import torch

        self.torch = torch
        folder = self.enterContext(shared_folder.folder())
        self.where = f"file:{folder}/a?size=512MiB"

    def state(self, seed):
        make = self.torch.Generator("cuda").manual_seed(seed)
        large = self.torch.randn(5000, 3001, generator=make, device="cuda")
        return {
            "large": large,
            "half": large[:1111].bfloat16(),
            "small": large[0, :77].clone(),
            "scalar": large[1, 1].clone(),
            "bool": large[:, :999] > 0,
        }

    @parameterized.parameters("", "&coherence=uncached")
    def test_each_version(self, options):
        with jax_cxl.Store(self.where + options) as store:
            last, into = None, {k: self.torch.zeros_like(x) for k, x in self.state(0).items()}
            for seed in range(3):
                state = self.state(seed)
                store.publish("a", state)
                store.flush("a")
                last = store.read("a", into=into if last is None else last)
                for name, x in state.items():
                    self.assertTrue(self.torch.equal(x, into[name]), name)
            store.publish("a", {**state, "small": state["small"] + 1})
            store.flush("a")
            last = store.read("a", into=last)
            self.assertTrue(self.torch.equal(into["small"], state["small"] + 1))
            self.assertTrue(self.torch.equal(into["large"], state["large"]))

    def test_parts(self):
        with jax_cxl.Store(self.where) as store:
            state = self.state(1)
            store.publish("a", state)
            store.flush("a")
            rows, columns = (self.torch.zeros(n, device="cuda") for n in ((900, 3001), (5000, 70)))
            into = {"large": (rows, np.s_[1000:1900])}
            store.read("a", into=into)
            store.read("a", into={"large": (columns, np.s_[:, 9:79])})
            self.assertTrue(self.torch.equal(rows, state["large"][1000:1900]))
            self.assertTrue(self.torch.equal(columns, state["large"][:, 9:79]))

    def test_work_that_the_program_has_enqueued_comes_first(self):
        with jax_cxl.Store(self.where) as store:
            state = self.state(2)
            store.publish("a", state)
            store.flush("a")
            into = {"large": self.torch.ones_like(state["large"])}
            x = self.torch.randn(4096, 4096, device="cuda")
            for _ in range(50):
                x = x @ x / 64
            copied = into["large"] * 2  # Reads the tensor late.
            store.read("a", into=into)
            self.assertTrue(bool((copied == 2).all()))
            self.assertTrue(self.torch.equal(into["large"], state["large"]))

    def test_without_blocking(self):
        with jax_cxl.Store(self.where) as store:
            last, into = None, {k: self.torch.zeros_like(x) for k, x in self.state(0).items()}
            for seed in range(4):
                state = self.state(seed)
                store.publish("a", state)
                store.flush("a")
                last = store.read("a", into=last or into, non_blocking=True)
                last.wait()
                sums = {k: (x == state[k]).all() for k, x in into.items()}
                last.check()
                for name, same in sums.items():
                    self.assertTrue(bool(same), name)


if __name__ == "__main__":
    absltest.main()
