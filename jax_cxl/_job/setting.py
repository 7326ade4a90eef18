"""Whether programs that are compiled now are taken over.

The setting is part of the keys of JAX's caches, so that a program that was compiled under one
setting never runs under another. It belongs to the process, not to a thread, because XLA may call
the compiler hook in a thread of its own.
"""

import os
from typing import NamedTuple

import jax

from jax_cxl import _sizes
from jax_cxl._job import variables

# The default: a small part of a GPU's memory. In the example of docs/takeover.md, a larger value
# gains little.
EARLY_BYTES = 256 << 20


class Setting(NamedTuple):
    """How collectives are taken over.

    Attributes:
      local: whether collectives within one process are taken over too.
      strict: whether a collective that cannot be taken over is an error.
      levels: whether collectives run in levels; None leaves it to the table (docs/levels.md).
      early_bytes: on GPUs, how many bytes of memory may be spent on starting collectives earlier
        than in XLA's schedule. None: the schedule stays as it is.
    """

    local: bool = False
    strict: bool = False
    levels: bool | None = None
    early_bytes: int | None = EARLY_BYTES


# A Setting. None means that nothing is taken over.
context = jax.make_user_context(None)


def current() -> Setting | None:
    """Returns the setting of the process."""
    return context.get_global()


def early_bytes() -> int | None:
    """Returns `JAX_CXL_EARLY_BYTES` in bytes: None for "off", and the default if it is unset."""
    text = os.environ.get(variables.EARLY_BYTES, "")
    if not text:
        return EARLY_BYTES
    if text == "off":
        return None
    try:
        return _sizes.parse(text, least=0)
    except ValueError:
        raise ValueError(
            f"{variables.EARLY_BYTES}={text!r}: it must be a size such as 256MiB, or off."
        ) from None
