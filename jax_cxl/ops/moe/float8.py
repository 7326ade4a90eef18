"""Rows in float8 with scales, as one table of bytes."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

_DTYPE = jnp.float8_e4m3fn
_LARGEST = float(jnp.finfo(_DTYPE).max)


def pack(x: Any, block: int) -> Any:
    """Returns bytes, (rows, D + 4 * D / block): the elements, then a float32 scale for each block.

    The scale of a block maps its largest magnitude to 448, the largest number of float8_e4m3fn.
    """
    blocks = x.astype(np.float32).reshape(len(x), x.shape[1] // block, block)
    largest = jnp.abs(blocks).max(2, keepdims=True)
    scales = jnp.where(largest > 0, largest * np.float32(1 / _LARGEST), 1)
    elements = lax.bitcast_convert_type((blocks / scales).astype(_DTYPE), np.uint8)
    scale_bytes = lax.bitcast_convert_type(scales[..., 0], np.uint8)
    return jnp.concatenate(
        [elements.reshape(x.shape), scale_bytes.reshape(len(x), 4 * (x.shape[1] // block))], axis=1
    )


def unpack(packed: Any, width: int, block: int, dtype: Any) -> Any:
    """Returns the rows, (rows, width). Rows of zero bytes become zeros."""
    elements = lax.bitcast_convert_type(packed[:, :width], _DTYPE).astype(np.float32)
    scale_bytes = packed[:, width:].reshape(len(packed), width // block, 4)
    scales = lax.bitcast_convert_type(scale_bytes, np.float32)
    blocks = elements.reshape(len(packed), width // block, block) * scales[..., None]
    return blocks.reshape(len(packed), width).astype(dtype)
