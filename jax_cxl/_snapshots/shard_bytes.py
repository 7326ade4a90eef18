"""The bytes of a shard of an array, held until they are saved."""

from typing import Any

import numpy as np


class ShardBytes:
    """The bytes of an array on one device, in row-major order.

    A view of a buffer of XLA keeps XLA from giving the buffer to a program that may overwrite it:
    such a program gets another buffer, with a copy. So the bytes stay as they are.
    """

    def __init__(self, array: Any):
        """Takes hold of an array of NumPy, or of one of JAX whose values have been computed."""
        flat = np.ascontiguousarray(array).reshape(-1)
        self._bytes = flat.view(np.uint8)

    def read(self, start: int, end: int) -> np.ndarray:
        """Returns a view of some of the bytes."""
        return self._bytes[start:end]
