"""The checksum of snapshots: XXH3 of 64 bits, by the library xxhash."""

import functools
from typing import Any

import numpy as np

from jax_cxl import errors


def of(data: Any) -> int:
    """Returns the checksum of an object with a buffer.

    Raises:
      CxlError: xxhash is not installed.
    """
    digest: int = _xxhash().xxh3_64_intdigest(data)
    return digest


def of_each(rows: np.ndarray) -> list[int]:
    """Returns the checksum of each row of an array of bytes.

    Between rows the function holds Python's lock as briefly as possible, because other threads that
    compute checksums wait for the lock.
    """
    return list(map(_xxhash().xxh3_64_intdigest, rows))


@functools.cache
def _xxhash() -> Any:
    try:
        import xxhash
    except ImportError:
        raise errors.CxlError(
            "snapshots need the package xxhash: pip install 'jax_cxl[snapshots]'"
        ) from None
    return xxhash
