"""Whether programs that are compiled now are taken over.

The setting is part of the keys of JAX's caches, so that no program that was compiled under one
setting runs under another. It is that of the process and not of a thread, because XLA may call the
compiler hook in a thread of its own.
"""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class Setting:
    """How collectives are taken over.

    Attributes:
      local: also those within one process.
      strict: one that cannot be taken over is an error.
    """

    local: bool = False
    strict: bool = False


# A Setting, or None: nothing is taken over.
context = jax.make_user_context(None)


def current() -> Setting | None:
    """Returns the setting of the process."""
    return context.get_global()
