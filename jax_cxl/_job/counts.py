"""How many of XLA's collectives were taken over."""

from collections import Counter


class Counts:
    """Collectives in the programs that this process has compiled.

    Attributes:
      taken: how many run through the pool, by their names in XLA.
      left: how many XLA executes although they were supposed to run through the pool, by reason.
    """

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self.left: Counter[str] = Counter()


counts = Counts()
