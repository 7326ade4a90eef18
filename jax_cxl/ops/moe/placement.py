"""jax_cxl.expert_placement."""

import numbers
from typing import Any

import numpy as np

# HiGHS, the solver in SciPy, stops after this many nodes of its search. Unlike a limit of seconds,
# this gives all processes the same placement.
_NODES = 200


def expert_placement(counts: Any, *, slack: float = 0.05) -> np.ndarray:
    """Proposes which rank should hold which expert.

    Every rank holds the same number of experts. The proposal first minimizes the largest load,
    which is the number of rows that arrive at one rank. It then minimizes the number of rows that
    cross from one rank to another. The solver uses mixed-integer programming, and its result may be
    a few percent from the optimum.

    Needs SciPy: `pip install 'jax_cxl[moe]'`. The same counts give the same proposal on all
    processes that have the same SciPy.

    Args:
      counts: (ranks, experts), how many times tokens of each rank chose each expert:
        `MoeHandle.counts` of all ranks, best summed over several steps.
      slack: by which fraction the largest load may exceed the smallest value that was found for it,
        if fewer rows then cross between ranks.

    Returns:
      (experts,), integers: the new number of each expert. The expert with the new number p lives on
      rank p // (experts / ranks). Pass `place[experts]` to `moe_dispatch` in place of `experts`,
      and reorder the parameters of the experts by `np.argsort(place)`. Within a rank, the new
      numbers are in the order of the old numbers.

    Raises:
      ImportError: SciPy is not installed.
      ValueError: counts are not a matrix, or have a number that is negative or not finite; slack is
        negative or not finite; or the number of experts is not a multiple of the number of ranks.

    Example:
      >>> counts = [[9, 9, 0, 0],  # tokens of rank 0 choose the experts 0 and 1
      ...           [0, 0, 8, 1]]
      >>> jax_cxl.expert_placement(counts)  # each rank holds an expert that is often chosen
      array([0, 2, 3, 1])
    """
    counts = np.asarray(counts, float)
    if counts.ndim != 2 or not counts.size or not np.all((counts >= 0) & np.isfinite(counts)):
        raise ValueError(
            "jax_cxl.expert_placement: counts must be (ranks, experts), finite and not negative,"
            f" got shape {counts.shape}."
        )
    if isinstance(slack, bool) or not isinstance(slack, numbers.Real) or not 0 <= slack < np.inf:
        raise ValueError(
            f"jax_cxl.expert_placement: slack must be a finite number of at least 0, got {slack!r}."
        )
    ranks, experts = counts.shape
    if experts % ranks:
        raise ValueError(
            f"jax_cxl.expert_placement: the number of experts, {experts}, must be a"
            f" multiple of the number of ranks, {ranks}."
        )
    rank_of = _solve(counts, slack) if ranks > 1 else np.zeros(experts, int)
    place = np.empty(experts, int)
    place[np.argsort(rank_of, kind="stable")] = np.arange(experts)
    return place


def _solve(counts: np.ndarray, slack: float) -> np.ndarray:
    """Returns the rank of each expert.

    In the integer program, variable e * ranks + r is 1 if expert e is on rank r, else 0. The last
    variable is the largest load.
    """
    try:
        from scipy import optimize, sparse  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            "jax_cxl.expert_placement needs SciPy: pip install 'jax_cxl[moe]'"
        ) from error
    ranks, experts = counts.shape
    total = counts.sum(0)
    scale = max(total.sum(), 1.0)
    one_rank = sparse.kron(sparse.eye(experts), np.ones((1, ranks)))
    equally_many = sparse.kron(np.ones((1, experts)), sparse.eye(ranks))
    load = sparse.kron(total[None] / scale, sparse.eye(ranks))
    each = experts // ranks
    constraints = [
        optimize.LinearConstraint(sparse.hstack([one_rank, np.zeros((experts, 1))]), 1, 1),
        optimize.LinearConstraint(sparse.hstack([equally_many, np.zeros((ranks, 1))]), each, each),
        optimize.LinearConstraint(sparse.hstack([load, -np.ones((ranks, 1))]), -np.inf, 0),
    ]

    def solve(cost, largest):
        found = optimize.milp(
            cost,
            integrality=np.append(np.ones(experts * ranks), 0),
            bounds=optimize.Bounds(0, np.append(np.ones(experts * ranks), largest)),
            constraints=constraints,
            options={"node_limit": _NODES, "mip_rel_gap": 0.01},
        )
        if found.x is None:
            raise RuntimeError(
                f"jax_cxl.expert_placement: SciPy's solver found no placement ({found.message})."
                " Keep the present placement, and report these counts to jax_cxl"
            )
        return found

    lightest = solve(np.append(np.zeros(experts * ranks), 1), 1.0).x
    rank_of = lightest[:-1].reshape(experts, ranks).argmax(1)
    largest = np.bincount(rank_of, total / scale, ranks).max()
    stays = np.append(-(counts.T / scale).ravel(), 0)
    fewest = solve(stays, min(1.0, largest * (1 + slack) + 1e-9)).x
    return fewest[:-1].reshape(experts, ranks).argmax(1)
