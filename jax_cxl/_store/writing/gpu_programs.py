"""Programs that GPUs run on arrays that are saved."""

import functools

import jax
import jax.numpy as jnp


@jax.jit
def sums(arrays: list[jax.Array]) -> list[jax.Array]:
    """Returns a checksum of each array: two sums of its words, weighted by their positions."""
    return [_sum(array) for array in arrays]


def _sum(array: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(array):
        array = jnp.stack([array.real, array.imag])
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    bits = min(32, 8 * array.dtype.itemsize)
    words = jax.lax.bitcast_convert_type(array, f"uint{bits}").reshape(-1).astype(jnp.uint32)
    place = jax.lax.iota(jnp.uint32, words.size)
    sums = []
    for multiplier in (0x9E3779B1, 0x85EBCA6B):
        # An odd factor keeps every bit of a word. The mixing makes the factors of neighboring words
        # independent.
        mixed = (place + 1) * jnp.uint32(multiplier)
        factor = (mixed ^ (mixed >> 15)) * jnp.uint32(0xC2B2AE35) | 1
        word = (words ^ (words >> 16)) * jnp.uint32(multiplier)
        sums.append(jnp.sum((word ^ (word >> 13)) * factor, dtype=jnp.uint32))
    return jnp.stack(sums)


@functools.partial(jax.jit, static_argnums=1)
def copied(arrays: list[jax.Array], ranges: tuple[tuple[int, int], ...]) -> list[jax.Array]:
    """Returns copies of some elements of each array, in row-major order."""
    return [
        jnp.copy(array.reshape(-1)[start:end])
        for array, (start, end) in zip(arrays, ranges, strict=True)
    ]
