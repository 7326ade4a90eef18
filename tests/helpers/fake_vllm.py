"""A stand-in for the parts of vLLM 0.33.0 that load engines of weight transfer and call them.

`install` puts it under the names of vLLM's modules. What it does follows
vllm/distributed/weight_transfer/base.py and factory.py, vllm/v1/worker/gpu_worker.py, and
vllm/model_executor/model_loader/reload, with as little as engines can notice.
"""

import abc
import dataclasses
import sys
import types
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

import torch

_InitInfo = TypeVar("_InitInfo")
_UpdateInfo = TypeVar("_UpdateInfo")


@dataclasses.dataclass
class WeightTransferInitInfo(abc.ABC):  # noqa: B024  vLLM's is like this.
    """What `init_weight_transfer_engine` gets."""


@dataclasses.dataclass
class WeightTransferUpdateInfo(abc.ABC):  # noqa: B024
    """What `update_weights` gets."""


class WeightTransferEngine(abc.ABC, Generic[_InitInfo, _UpdateInfo]):
    """The base class of engines."""

    init_info_cls: type[Any]
    update_info_cls: type[Any]
    supports_draft_weight_update = True

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module):
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.model_config = vllm_config.model_config

    def reset_weight_update_target(self) -> None:
        """vLLM puts back the model that it had replaced by a draft model."""

    @abc.abstractmethod
    def init_transfer_engine(self, init_info: Any) -> None: ...

    @abc.abstractmethod
    def start_weight_update(self) -> None: ...

    @abc.abstractmethod
    def finish_weight_update(self) -> None: ...

    @abc.abstractmethod
    def receive_weights(self, update_info: Any) -> None: ...

    @abc.abstractmethod
    def shutdown(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Parses the dict that came over HTTP, and receives the weights."""
        self.receive_weights(_parse(self.update_info_cls, update_info))


def _parse(of: type[Any], arguments: dict[str, Any]) -> Any:
    try:
        return of(**arguments)
    except TypeError as error:
        raise ValueError(f"Invalid {of.__name__}: {error}") from error


class WeightTransferEngineFactory:
    """Engines by name."""

    engines: ClassVar[dict[str, type[WeightTransferEngine]]] = {}

    @classmethod
    def register_engine(cls, name: str, engine: type[WeightTransferEngine]) -> None:
        """Adds an engine."""
        if name in cls.engines:
            raise ValueError(f"{name} is already registered")
        cls.engines[name] = engine


class Worker:
    """A worker of vLLM with a model, reached by the RPCs that a trainer's client causes."""

    def __init__(self, backend: str, model: torch.nn.Module):
        """Loads the model, and makes the engine."""
        config = types.SimpleNamespace(model_config=object(), parallel_config=object())
        self._engine = WeightTransferEngineFactory.engines[backend](
            types.SimpleNamespace(backend=backend), config, torch.device("cpu"), model
        )
        self._active = False

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connects the engine."""
        self._engine.init_transfer_engine(_parse(self._engine.init_info_cls, init_info))

    def start_weight_update(self) -> None:
        """Begins an update."""
        if self._active:
            raise RuntimeError("an update is active")
        self._engine.start_weight_update()
        self._active = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Loads weights. After an error no update is active."""
        if not self._active:
            raise RuntimeError("no update is active")
        try:
            self._engine.update_weights(update_info)
        except BaseException:
            self._active = False
            self._engine.reset_weight_update_target()
            raise

    def finish_weight_update(self) -> None:
        """Ends an update."""
        if not self._active:
            raise RuntimeError("no update is active")
        self._engine.finish_weight_update()
        self._engine.reset_weight_update_target()
        self._active = False

    def shutdown(self) -> None:
        """Ends the worker."""
        self._engine.shutdown()


_FUSED = {name: ("qkv", i) for i, name in enumerate("qkv")} | {
    "gate": ("both", 0),
    "up": ("both", 1),
}


class Llama(torch.nn.Module):
    """Parameters as in vLLM's Llama, of which a rank has its rows or columns, and its loader.

    Queries, keys and values are one parameter, and so are gate and up.
    """

    def __init__(self, layers: int, width: int, inner: int, words: int, rank: int, ranks: int):
        super().__init__()
        self._rank, self._ranks = rank, ranks
        shapes = {"model.embed_tokens": (words // ranks, width), "model.norm": (width,)}
        shapes["lm_head"] = (words // ranks, width)
        for i in range(layers):
            at = f"model.layers.{i}."
            shapes[f"{at}self_attn.qkv_proj"] = (3 * width // ranks, width)
            shapes[f"{at}self_attn.o_proj"] = (width, width // ranks)
            shapes[f"{at}mlp.both_proj"] = (2 * inner // ranks, width)
            shapes[f"{at}mlp.down_proj"] = (width, inner // ranks)
            shapes[f"{at}input_layernorm"] = shapes[f"{at}post_attention_layernorm"] = (width,)
        self.weights = {
            f"{name}.weight": torch.zeros(shape, dtype=torch.bfloat16)
            for name, shape in shapes.items()
        }
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] | None = None

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Loads weights of a checkpoint. Those of a reload are copied when it is finalized."""
        loaded = set()
        for name, x in weights:
            *at, kind, _ = name.split(".")
            fused, part = _FUSED.get(kind.removesuffix("_proj"), ("", 0))
            own = self.weights[".".join([*at, f"{fused}_proj", "weight"]) if fused else name]
            if x.ndim > 1:
                of = 1 if kind in ("o_proj", "down_proj") else 0
                n = x.shape[of] // self._ranks
                x = x.narrow(of, self._rank * n, n)
                own = own[part * n : (part + 1) * n] if fused else own
            if own.shape != x.shape:
                raise AssertionError(f"{name}: {x.shape} instead of {own.shape}")
            if self.waiting is None:
                raise AssertionError("the weights of a running model are overwritten")
            self.waiting.append((own, x))
            loaded.add(name)
        return loaded


def initialize_layerwise_reload(model: Llama) -> None:
    """Lets the weights of the next loads wait until `finalize_layerwise_reload`."""
    model.waiting = model.waiting or []


def finalize_layerwise_reload(model: Llama, model_config: Any) -> None:
    """Copies the weights into the parameters."""
    del model_config
    for own, x in model.waiting or ():
        own.copy_(x)
    model.waiting = None


def install() -> None:
    """Makes `import vllm` find this module."""
    this = sys.modules[__name__]
    for name in (
        *("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"),
        *("vllm.distributed.weight_transfer.base", "vllm.model_executor"),
        *("vllm.model_executor.model_loader", "vllm.model_executor.model_loader.reload"),
    ):
        sys.modules[name] = this
