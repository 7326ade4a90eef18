"""How many of XLA's collectives were taken over."""

import dataclasses
from collections import Counter


@dataclasses.dataclass
class Counts:
    """Collectives in the programs that this process has compiled.

    Attributes:
      taken: how many run through the pool, by their names in XLA.
      left: how many XLA executes although they were supposed to run through the pool, by reason.
    """

    taken: Counter[str] = dataclasses.field(default_factory=Counter)
    left: Counter[str] = dataclasses.field(default_factory=Counter)


counts = Counts()
