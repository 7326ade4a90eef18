"""The attributes of jax_cxl's custom calls, as the text that XLA keeps.

A new call has no number yet: its site is -1.
"""

from typing import Any

import numpy as np

_TYPES = {"int32": "i32", "int64": "i64"}
_NO_SITE = "site = -1 : i64"


def of(attributes: dict[str, Any]) -> str:
    """Returns the attributes that `contract.attributes` made."""
    every = sorted(attributes.items())
    return "{" + ", ".join(f"{name} = {_value(value)}" for name, value in every) + "}"


def is_new(config: str) -> bool:
    """Returns whether these are the attributes of a call that has no number yet."""
    return _NO_SITE in config


def numbered(config: str, site: int) -> str:
    """Returns the attributes of a new call with its number in its program."""
    return config.replace(_NO_SITE, f"site = {site} : i64")


def _value(value: Any) -> str:
    if isinstance(value, str):
        # Unprintable bytes become two hexadecimal digits.
        plain = (
            chr(b) if 0x20 <= b < 0x7F and b not in b'"\\' else f"\\{b:02X}" for b in value.encode()
        )
        return '"' + "".join(plain) + '"'
    kind = _TYPES[str(value.dtype)]
    if np.ndim(value) == 0:
        return f"{value} : {kind}"
    items = ", ".join(map(str, value))
    return f"array<{kind}: {items}>" if items else f"array<{kind}>"
