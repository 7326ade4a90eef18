"""The attributes of jax_cxl's custom calls, which XLA keeps as text."""

from typing import Any, NamedTuple

import numpy as np

_TYPES = {"int32": "i32", "int64": "i64"}
_NO_SITE = "site = -1 : i64"
_LINE = 'line = ""'


class Config(NamedTuple):
    """The attributes of one call."""

    text: str

    @classmethod
    def of(cls, attributes: dict[str, Any], line: str) -> "Config":
        """Returns the attributes that `contract.attributes` made, with a source line."""
        return cls(_text(attributes)).at(line)

    @property
    def is_new(self) -> bool:
        """Whether the call has no number yet."""
        return _NO_SITE in self.text

    @property
    def has_line(self) -> bool:
        """Whether the source line of the call is known."""
        return _LINE not in self.text

    def at(self, line: str) -> "Config":
        """Returns the attributes with this source line, if none is known."""
        return Config(self.text.replace(_LINE, f"line = {_quoted(line)}"))

    def numbered(self, site: int) -> "Config":
        """Returns the attributes with `site` as the number of the call in its program."""
        return Config(self.text.replace(_NO_SITE, f"site = {site} : i64"))


def _text(attributes: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{k} = {_value(v)}" for k, v in sorted(attributes.items())) + "}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    kind = _TYPES[str(value.dtype)]
    if np.ndim(value) == 0:
        return f"{int(value)} : {kind}"
    items = ", ".join(str(int(item)) for item in value)
    return f"array<{kind}: {items}>" if items else f"array<{kind}>"


def _quoted(text: str) -> str:
    """Returns a string as MLIR writes it: unprintable bytes become two hexadecimal digits."""
    plain = (
        chr(b) if 0x20 <= b < 0x7F and b not in b'"\\' else f"\\{b:02X}" for b in text.encode()
    )
    return '"' + "".join(plain) + '"'
