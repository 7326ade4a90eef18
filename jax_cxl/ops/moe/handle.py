"""The routing of tokens, which a dispatch computes and a combine needs."""

import dataclasses
from typing import Any

import jax

_STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MoeHandle:
    """The routing of tokens, which `moe_dispatch` returns and `moe_combine` takes.

    It is a pytree of integer arrays.

    An *assignment* is a token's choice of an expert: T tokens with k choices have T * k of them on
    each rank. All ranks number them together, rank after rank, token after token.

    Attributes:
      group_sizes: (experts of a rank,), int32: rows of each expert of this rank.
      counts: (experts,), int32: assignments of this rank's tokens to each expert, before any are
        dropped. `expert_placement` takes the counts of all ranks.
      dropped: (), int32: assignments to experts of this rank that found no room.
      assignment: (rows,), int32: the assignment of each row, -1 for rows that are not used. The
        token of a row is `assignment // k`, counted over all ranks.
      fetch: private, as are the fields after it.
    """

    group_sizes: Any
    counts: Any
    dropped: Any
    assignment: Any
    fetch: Any  # (fetched,): the token of each row that this rank fetches, -1 for none.
    expand: Any  # (rows,): the fetched row of each row, -1 for none; None: the same row.
    rows_of: Any  # (fetched, k): the rows of each fetched row, -1 for none; None: the same.
    back: Any  # (T, slots): the rows, among those that all ranks fetch, of each token; -1: none.
    wanted: Any  # (T,): whether another rank may fetch this token.
    returned: Any  # (fetched,): whether the token of each fetched row is another rank's.
    # The axes over which the experts are spread.
    axes: tuple = dataclasses.field(metadata=_STATIC)
    # How many experts a token chooses.
    choices: int = dataclasses.field(metadata=_STATIC)
    # Rows of an expert; None: rows without gaps.
    capacity: int | None = dataclasses.field(metadata=_STATIC)
