"""What a check of `python -m jax_cxl doctor` has found."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
      level: "ok", "note" (something cannot be used, which may not matter) or "problem".
      text: the result and, unless the level is "ok", what to do.
    """

    level: str
    text: str
