"""What the hook decided about the collectives of one program, for `jax_cxl.explain`."""


class Decisions:
    """The decisions, by the names of the collectives' instructions.

    Attributes:
      left: why a collective stays with XLA although it was a candidate for the pool.
      in_levels: the collectives that were taken over and run in levels.
    """

    def __init__(self) -> None:
        self.left: dict[str, str] = {}
        self.in_levels: set[str] = set()
