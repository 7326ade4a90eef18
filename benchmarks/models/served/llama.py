"""A Llama of random weights, with the same bits in JAX and in PyTorch.

Each weight is an integer of at most 8 bits times a power of two, so that bfloat16 has it exactly.
The integer is a hash of the weight's place and of the version. So the server computes the bits that
the trainer has published, without a word from the trainer.
"""

import dataclasses
import functools
import math

_EPS = 1e-6
_THETA = 10000.0


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of a model, named as in transformers."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each weight, by its name in transformers."""
        width, kept = self.hidden_size, self.hidden_size // self.num_attention_heads
        kept *= self.num_key_value_heads
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, width)}
        for layer in range(self.num_hidden_layers):
            at = f"model.layers.{layer}."
            for name in "qo":
                found[f"{at}self_attn.{name}_proj.weight"] = (width, width)
            for name in "kv":
                found[f"{at}self_attn.{name}_proj.weight"] = (kept, width)
            for name in ("gate", "up"):
                found[f"{at}mlp.{name}_proj.weight"] = (self.intermediate_size, width)
            found[f"{at}mlp.down_proj.weight"] = (width, self.intermediate_size)
            for name in ("input", "post_attention"):
                found[f"{at}{name}_layernorm.weight"] = (width,)
        return found | {"model.norm.weight": (width,), "lm_head.weight": (self.vocab_size, width)}

    def nbytes(self) -> int:
        """Bytes of all weights."""
        return 2 * sum(map(math.prod, self.shapes().values()))


SIZES = {
    "tiny": Size(256, 640, 2, 4, 2, 1024),
    "0.1gb": Size(768, 2048, 6, 12, 4, 8192),
    "1gb": Size(1536, 4096, 16, 12, 4, 32000),
    "16gb": Size(4096, 14336, 32, 32, 8, 128256),
}


def _seed(number: int, version: int) -> int:
    return (number * 1000003 + version * 7919 + 1) * 2654435761 % 2**32


def _scale(shape: tuple[int, ...]) -> tuple[int, int, float, float]:
    """Returns mask, offset, factor and center of the integers of a weight."""
    return (0xFF, 128, 2.0**-12, 0.0) if len(shape) > 1 else (0xF, 8, 2.0**-7, 1.0)


@functools.cache
def _jax_weight(shape: tuple[int, ...]):
    import jax
    import jax.numpy as jnp

    @jax.jit
    def make(seed):
        x = jnp.arange(math.prod(shape), dtype=jnp.uint32) + seed
        x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
        x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
        x = x ^ (x >> 16)
        mask, offset, factor, center = _scale(shape)
        value = ((x & mask).astype(jnp.int32) - offset).astype(jnp.float32) * factor + center
        return value.astype(jnp.bfloat16).reshape(shape)

    return make


def jax_weights(size: Size, version: int):
    """Returns the weights of a version as arrays of JAX, by name."""
    import numpy as np

    return {
        name: _jax_weight(shape)(np.uint32(_seed(number, version)))
        for number, (name, shape) in enumerate(size.shapes().items())
    }


def _signed(x: int) -> int:
    return x - 2**32 if x >= 2**31 else x


def torch_wrong(size: Size, version: int, state) -> int:
    """Returns how many elements of tensors differ from the weights of a version."""
    import torch

    wrong = 0
    for number, (name, shape) in enumerate(size.shapes().items()):
        seed, flat = _seed(number, version), state[name].detach().reshape(-1)
        mask, offset, factor, center = _scale(shape)
        for start in range(0, len(flat), 1 << 27):
            part = flat[start : start + (1 << 27)]
            x = torch.arange(len(part), dtype=torch.int32, device=part.device)
            x += _signed((seed + start) % 2**32)  # PyTorch wraps around, as unsigned numbers do.
            x = (x ^ ((x >> 16) & 0xFFFF)) * _signed(0x85EBCA6B)
            x = (x ^ ((x >> 13) & 0x7FFFF)) * _signed(0xC2B2AE35)
            x = x ^ ((x >> 16) & 0xFFFF)
            value = (((x & mask) - offset).float() * factor + center).bfloat16()
            wrong += int((value.view(torch.int16) != part.view(torch.int16)).sum())
    return wrong


def jax_logits(size: Size, weights, tokens):
    """Returns float32 logits of the last token of int32[length] tokens."""
    import jax.numpy as jnp

    layer = _jax_layer(size)
    x = weights["model.embed_tokens.weight"][tokens]
    for number in range(size.num_hidden_layers):
        at = f"model.layers.{number}."
        of = {k[len(at) : -len(".weight")]: v for k, v in weights.items() if k.startswith(at)}
        x = layer(x, of)
    x = _norm(x[-1:], weights["model.norm.weight"])
    return (x @ weights["lm_head.weight"].T).astype(jnp.float32)[0]


def _norm(x, weight):
    import jax
    import jax.numpy as jnp

    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + _EPS)
    return weight * y.astype(x.dtype)


@functools.cache
def _jax_layer(size: Size):
    import jax
    import jax.numpy as jnp

    heads, kept = size.num_attention_heads, size.num_key_value_heads
    width = size.hidden_size // heads

    def rotate(x):
        angle = jnp.arange(x.shape[0])[:, None] / _THETA ** (jnp.arange(0, width, 2) / width)
        angle = jnp.concatenate([angle, angle], -1)[:, None]
        half = jnp.concatenate([-x[..., width // 2 :], x[..., : width // 2]], -1)
        return x * jnp.cos(angle).astype(x.dtype) + half * jnp.sin(angle).astype(x.dtype)

    @jax.jit
    def layer(x, w):
        length = x.shape[0]
        h = _norm(x, w["input_layernorm"])
        q, k, v = (
            (h @ w[f"self_attn.{c}_proj"].T).reshape(length, n, width)
            for c, n in (("q", heads), ("k", kept), ("v", kept))
        )
        q, k = rotate(q), rotate(k)
        k, v = (jnp.repeat(y, heads // kept, 1) for y in (k, v))
        scores = jnp.einsum("qhd,khd->hqk", q, k).astype(jnp.float32) * width**-0.5
        scores = jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf)
        mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores).astype(x.dtype), v)
        x = x + mixed.reshape(length, -1) @ w["self_attn.o_proj"].T
        h = _norm(x, w["post_attention_layernorm"])
        h = jax.nn.silu(h @ w["mlp.gate_proj"].T) * (h @ w["mlp.up_proj"].T)
        return x + h @ w["mlp.down_proj"].T

    return layer


def torch_model(size: Size, device: str):
    """Returns the model of transformers, with other weights."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        **dataclasses.asdict(size), rms_norm_eps=_EPS, tie_word_embeddings=False
    )
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return transformers.LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(kept)
