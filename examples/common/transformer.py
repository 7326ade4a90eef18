"""A decoder-only transformer over bytes: pure functions of parameters, unaware of devices.

Pre-norm blocks with rotary positions, no biases, GELU, and one embedding for input and output.

Shapes: B sequences, T positions, D width, H heads, K = D / H, V = 256 bytes.
"""

import dataclasses

import jax
import jax.numpy as jnp

BYTES = 256

Parameters = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes that determine the shapes of the parameters."""

    layers: int
    width: int
    heads: int

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} must be a multiple of 2 x {self.heads} heads: rotary"
                " positions turn pairs of a head's channels."
            )


def init_embedding(key: jax.Array, sizes: Sizes) -> Parameters:
    """Returns the parameters outside the layers: {"embedding": (V, D), "norm": (D,)}, float32."""
    return {
        "embedding": 0.02 * jax.random.normal(key, (BYTES, sizes.width)),
        "norm": jnp.zeros(sizes.width),
    }


def init_layer(key: jax.Array, sizes: Sizes) -> Parameters:
    """Returns one layer's parameters, float32.

    The matrices that add to the residual stream are smaller if there are more layers, so that the
    variance of the stream at the last layer does not depend on the number of layers.
    """
    width, residual = sizes.width, (2 * sizes.layers) ** -0.5
    shapes = {
        "qkv": ((width, 3 * width), 1.0),
        "out": ((width, width), residual),
        "up": ((width, 4 * width), 1.0),
        "down": ((4 * width, width), residual),
    }
    layer = {"attention_norm": jnp.zeros(width), "mlp_norm": jnp.zeros(width)}
    for name, (shape, scale) in shapes.items():
        key, subkey = jax.random.split(key)
        layer[name] = scale * shape[0] ** -0.5 * jax.random.normal(subkey, shape)
    return layer


def normalize(x: jax.Array, gain: jax.Array) -> jax.Array:
    """Scales (..., D) to a root mean square of 1, and then multiplies by 1 + gain, (D,).

    Weight decay pulls `gain` towards 0, and so the factor towards 1.
    """
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), -1, keepdims=True) + 1e-6)
    return x32.astype(x.dtype) * (1 + gain)


def rotate(x: jax.Array, start: jax.Array | int = 0) -> jax.Array:
    """Applies rotary positions to queries or keys, (B, T, H, K).

    Turns each pair of channels by an angle that is proportional to the position. The first position
    is `start`.
    """
    half = x.shape[3] // 2
    frequencies = 10_000.0 ** (-jnp.arange(half) / half)
    angles = (start + jnp.arange(x.shape[1]))[:, None, None] * frequencies
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def _attend(layer: Parameters, x: jax.Array, heads: int) -> jax.Array:
    """Causal self-attention, (B, T, D) to (B, T, D)."""
    batch, length, width = x.shape
    # The columns of a head lie side by side, so devices that divide the columns get whole heads.
    qkv = (x @ layer["qkv"]).reshape(batch, length, heads, 3, width // heads)
    queries, keys, values = (qkv[:, :, :, i] for i in range(3))
    queries, keys = rotate(queries), rotate(keys)
    scores = jnp.einsum("bqhk,bthk->bhqt", queries, keys).astype(jnp.float32)
    past = jnp.tri(length, dtype=bool)
    scores = jnp.where(past, scores * (width // heads) ** -0.5, -jnp.inf)
    weights = jax.nn.softmax(scores).astype(x.dtype)
    mixed = jnp.einsum("bhqt,bthk->bqhk", weights, values)
    return mixed.reshape(batch, length, width) @ layer["out"]


def embed(outer: Parameters, inputs: jax.Array) -> jax.Array:
    """Returns the embeddings (B, T, D) of bytes (B, T), int32.

    They are scaled so that they weigh as much as the output of a layer.
    """
    table = outer["embedding"]
    # A product, not an indexing: the gradient of indexing would add the positions one after another
    # to the rows of their bytes, and most positions share a few bytes.
    return jax.nn.one_hot(inputs, BYTES, dtype=table.dtype) @ table * table.shape[1] ** 0.5


def apply_attention(layer: Parameters, x: jax.Array, heads: int) -> jax.Array:
    """Adds the result of attention to the residual stream (B, T, D)."""
    return x + _attend(layer, normalize(x, layer["attention_norm"]), heads)


def apply_layer(layer: Parameters, x: jax.Array, heads: int) -> jax.Array:
    """Adds the results of attention, and then of the perceptron, to the residual stream."""
    x = apply_attention(layer, x, heads)
    hidden = jax.nn.gelu(normalize(x, layer["mlp_norm"]) @ layer["up"])
    return x + hidden @ layer["down"]


def nats(outer: Parameters, x: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns how surprised the model is by each byte.

    Args:
      outer: from `init_embedding`.
      x: (B, T, D), the last layer's output.
      targets: (B, T), int32, the byte that follows each position.

    Returns:
      Negative log likelihoods in nats, (B, T), float32.
    """
    logits = (normalize(x, outer["norm"]) @ outer["embedding"].T).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - chosen
