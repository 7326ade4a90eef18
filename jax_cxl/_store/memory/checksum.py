"""The checksum of snapshots: XXH3 of 64 bits, by the library xxhash."""

import functools
from typing import Any

from jax_cxl import errors


def of(data: Any) -> int:
    """Returns the checksum of an object with a buffer.

    Raises:
      CxlError: xxhash is not installed.
    """
    digest: int = _xxhash().xxh3_64_intdigest(data)
    return digest


@functools.cache
def _xxhash() -> Any:
    try:
        import xxhash
    except ImportError:
        raise errors.CxlError(
            "stores and snapshots need the package xxhash: pip install 'jax_cxl[store]'"
        ) from None
    return xxhash
