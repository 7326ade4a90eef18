"""A weight-transfer engine of vLLM that loads what a trainer in JAX publishes in a store.

It follows the interface of vLLM 0.33.0, vllm/distributed/weight_transfer. It has not run inside
vLLM: tests/store/vllm_engine_test.py calls it as vLLM's worker does. Copy this file into a package
of yours, change `weights_of`, and let vLLM find the package:

    [project.entry-points."vllm.general_plugins"]
    jax_cxl = "vllm_engine:register"

    vllm serve MODEL --weight-transfer-config '{"backend": "jax_cxl"}'

The trainer publishes, and tells vLLM which version to load. `client` is one of vLLM's
`VLLMWeightSyncClient`, or anything else that calls the same routes:

    client.init_weight_transfer_engine({"where": "shm:policy?size=64GiB", "name": "policy"})
    ...
    version = store.publish("policy", params)
    store.flush("policy")
    client.start_weight_update()
    client.update_weights({"version": version})
    client.finish_weight_update()

The weights are not sent. Each worker of vLLM maps the memory of the store, and vLLM's own loaders
copy from it the rows that the worker needs, as from a file of safetensors.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

import jax_cxl

_OUTSIDE = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_IN_A_LAYER = {
    **{name: f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}


def weights_of(path: str, x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights in a leaf of the trainer's tree, by their names in the checkpoint.

    This trainer has a Llama whose layers are stacked, (layers, inputs, outputs), as `jax.lax.scan`
    wants them. The checkpoint has (outputs, inputs). Nothing is copied here.
    """
    *stacked, name = path.split("/")
    if not stacked:
        yield f"{_OUTSIDE[name]}.weight", x.T if name == "head" else x
        return
    for number, layer in enumerate(x):
        yield f"model.layers.{number}.{_IN_A_LAYER[name]}.weight", layer.T if x.ndim > 2 else layer


@dataclasses.dataclass
class InitInfo(WeightTransferInitInfo):
    """Where the weights are: the URI of the store, and the name."""

    where: str
    name: str


@dataclasses.dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The version to load, which is the same for all workers."""

    version: int


class StoreEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads versions of a name into the model of a worker."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    _view: Any = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Opens the store."""
        self._store, self._name = jax_cxl.Store(init_info.where), init_info.name

    def start_weight_update(self) -> None:
        """Does nothing: if the version cannot be read, the model must keep the weights it has."""

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Loads a version. The lease of the view keeps it until all of it is in the model."""
        leaves = self._leaves(update_info.version)
        initialize_layerwise_reload(self.model)
        self.model.load_weights(w for path, x in leaves.items() for w in weights_of(path, x))

    def finish_weight_update(self) -> None:
        """Lets vLLM process the weights.

        Raises:
          StoreError: the process stood still for seconds, and lost its lease. Load again.
        """
        finalize_layerwise_reload(self.model, self.model_config)
        if self._view is not None:
            self._view.check()
        self.shutdown()

    def shutdown(self) -> None:
        """Ends the lease."""
        view, self._view = self._view, None
        if view is not None:
            view.close()

    def _leaves(self, version: int) -> dict[str, torch.Tensor]:
        self.shutdown()  # An earlier update may have failed.
        try:
            view = self._store.view(self._name, version=version)
        except jax_cxl.StoreError:
            # An array that was published in several pieces can be read, but not viewed.
            tree = self._store.read(self._name, version=version).tree
            return {path: _tensor(x) for path, x in tree.items() if isinstance(x, np.ndarray)}
        self._view = view
        arrays = [path for path, x in view.tree.items() if isinstance(x, np.ndarray)]
        return {path: torch.from_dlpack(view.dlpack(path)) for path in arrays}


def _tensor(x: np.ndarray) -> torch.Tensor:
    """Returns a tensor over an array, whose dtype NumPy itself may lack, as bfloat16."""
    bits = torch.from_numpy(x.reshape(-1).view(np.uint8))
    return bits.view(getattr(torch, x.dtype.name)).reshape(x.shape)


def register() -> None:
    """Tells vLLM of the engine. Each process of vLLM calls it."""
    WeightTransferEngineFactory.register_engine("jax_cxl", StoreEngine)
