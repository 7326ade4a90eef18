"""What a check of `python -m jax_cxl doctor` has found."""

import functools
from typing import NamedTuple


class Finding(NamedTuple):
    """The result of a check.

    Attributes:
      level: "ok", "note" (something cannot be used, which may not matter) or "problem".
      text: the result and, unless the level is "ok", what to do.
    """

    level: str
    text: str


ok, note, problem = (functools.partial(Finding, level) for level in ("ok", "note", "problem"))
