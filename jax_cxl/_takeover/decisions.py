"""What the hook decided about the collectives of one program, for `jax_cxl.explain`."""

import dataclasses


@dataclasses.dataclass
class Decisions:
    """The decisions, by the names of the collectives' instructions.

    Attributes:
      left: why a collective stays with XLA although it was a candidate for the pool.
      in_levels: the collectives that were taken over and run in levels.
    """

    left: dict[str, str] = dataclasses.field(default_factory=dict)
    in_levels: set[str] = dataclasses.field(default_factory=set)
