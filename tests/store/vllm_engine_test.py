"""examples/vllm_engine.py, called as vLLM calls its engines. vLLM itself is not needed."""

import importlib.util
import pathlib
import sys
import unittest
import unittest.mock

import jax
import jax.numpy as jnp
import numpy as np
import store_harness as harness
from absl.testing import absltest

import jax_cxl

_EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "vllm_engine.py"
_LAYERS, _WIDTH, _INNER, _WORDS = 2, 64, 128, 96


def _params(version: int):
    """Returns the tree of a trainer, with stacked layers, as `weights_of` expects it."""
    shapes = {"embed": (_WORDS, _WIDTH), "norm": (_WIDTH,), "head": (_WIDTH, _WORDS)}
    shapes["layers"] = dict.fromkeys("qkvo", (_LAYERS, _WIDTH, _WIDTH))
    shapes["layers"] |= dict.fromkeys(("gate", "up"), (_LAYERS, _WIDTH, _INNER))
    shapes["layers"] |= {"down": (_LAYERS, _INNER, _WIDTH)}
    shapes["layers"] |= dict.fromkeys(("attention_norm", "mlp_norm"), (_LAYERS, _WIDTH))
    rng = np.random.default_rng(version)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.standard_normal(shape), jnp.bfloat16),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class VllmEngineTest(harness.StoreTest):
    def setUp(self):
        super().setUp()
        import fake_vllm

        self.vllm = fake_vllm
        self.enterContext(unittest.mock.patch.dict(sys.modules))
        self.enterContext(unittest.mock.patch.dict(fake_vllm.WeightTransferEngineFactory.engines))
        fake_vllm.install()
        spec = importlib.util.spec_from_file_location("vllm_engine", _EXAMPLE)
        self.engine = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.engine)
        self.engine.register()
        self.store = self.enterContext(self.open())

    def start(self, rank=0, ranks=1):
        model = self.vllm.Llama(_LAYERS, _WIDTH, _INNER, _WORDS, rank, ranks)
        worker = self.vllm.Worker("jax_cxl", model)
        worker.init_weight_transfer_engine({"where": self.where, "name": "policy"})
        self.addCleanup(worker.shutdown)
        return worker, model.weights

    def publish(self, version, params=None):
        self.store.publish("policy", params or _params(version), version=version)
        self.store.flush("policy")

    def update(self, worker, version):
        worker.start_weight_update()
        worker.update_weights({"version": version})
        worker.finish_weight_update()

    def assert_weights(self, weights, version, rank=0, ranks=1):
        params = jax.tree.map(np.asarray, _params(version))

        def part(x, axis):
            return np.split(x, ranks, axis)[rank]

        expected = {
            "model.embed_tokens": part(params["embed"], 0),
            "model.norm": params["norm"],
            "lm_head": part(params["head"].T, 0),
        }
        for i in range(_LAYERS):
            of = {name: x[i].T for name, x in params["layers"].items()}
            at = f"model.layers.{i}."
            expected |= {
                f"{at}self_attn.qkv_proj": np.concatenate([part(of[c], 0) for c in "qkv"]),
                f"{at}self_attn.o_proj": part(of["o"], 1),
                f"{at}mlp.both_proj": np.concatenate([part(of[c], 0) for c in ("gate", "up")]),
                f"{at}mlp.down_proj": part(of["down"], 1),
                f"{at}input_layernorm": of["attention_norm"],
                f"{at}post_attention_layernorm": of["mlp_norm"],
            }
        self.assertEqual(set(weights), {f"{name}.weight" for name in expected})
        for name, x in expected.items():
            own = weights[f"{name}.weight"].float().numpy()
            np.testing.assert_array_equal(own, x.astype(np.float32), name)

    def test_versions(self):
        worker, weights = self.start()
        for version in range(6):  # More than the store keeps: each update ends its lease.
            self.publish(version)
            self.update(worker, version)
            self.assert_weights(weights, version)

    def test_tensor_parallel(self):
        workers = [self.start(rank, 2) for rank in range(2)]
        self.publish(0)
        for rank, (worker, weights) in enumerate(workers):
            self.update(worker, 0)
            self.assert_weights(weights, 0, rank, 2)

    def test_the_version_is_kept_until_it_is_loaded(self):
        worker, weights = self.start()
        self.publish(0)
        worker.start_weight_update()
        worker.update_weights({"version": 0})
        for version in range(1, 6):  # Nobody but the worker leases the memory of version 0.
            self.publish(version)
        worker.finish_weight_update()
        self.assert_weights(weights, 0)

    def test_a_version_that_is_gone_leaves_the_model_as_it_is(self):
        worker, weights = self.start()
        for version in range(5):
            self.publish(version)
        self.update(worker, 4)
        worker.start_weight_update()
        with self.assertRaisesRegex(jax_cxl.StoreError, "no version 0"):
            worker.update_weights({"version": 0})
        self.assert_weights(weights, 4)
        with self.assertRaisesRegex(ValueError, "version"):
            worker.start_weight_update()
            worker.update_weights({})
        self.publish(5)
        self.update(worker, 5)
        self.assert_weights(weights, 5)

    def test_arrays_in_several_pieces(self):
        mesh = jax.make_mesh((2,), ("i",))
        params = jax.tree.map(
            lambda x: jax.device_put(x, jax.NamedSharding(mesh, jax.P("i"))), _params(3)
        )
        self.publish(3, params)
        with self.assertRaisesRegex(jax_cxl.StoreError, "2 shards"):
            self.store.view("policy")
        worker, weights = self.start()
        self.update(worker, 3)
        self.assert_weights(weights, 3)


if __name__ == "__main__":
    absltest.main()
