"""moe_dispatch and moe_combine of all ranks in NumPy.

An assignment is a token together with one of the k experts that it chooses.
"""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np


@dataclasses.dataclass(frozen=True)
class Routed:
    """Where each assignment of all ranks went.

    Attributes:
      row: (ranks, T, k): the row at the expert's rank, -1 if dropped or if there is no expert.
      rank: (ranks, T, k): the expert's rank, -1 if there is no expert.
      sizes: (ranks, experts of a rank): how many rows each expert gets.
      dropped: (ranks,): how many assignments each rank drops.
      rows: number of rows of a rank.
      sums_first: whether a rank adds up the rows of a token before it sends them back. A rank with
        one expert does not: there a token has several rows only if it chose the expert twice.
    """

    row: np.ndarray
    rank: np.ndarray
    sizes: np.ndarray
    dropped: np.ndarray
    rows: int
    sums_first: bool


def route(experts: np.ndarray, num_experts: int, capacity=None, max_rows=None) -> Routed:
    """Routes the tokens of all ranks; experts has the shape (ranks, T, k)."""
    ranks = len(experts)
    per_rank = num_experts // ranks
    rows = capacity * per_rank if capacity else max_rows or experts.size
    row, rank = np.full(experts.shape, -1), np.full(experts.shape, -1)
    dropped = np.zeros(ranks, np.int32)
    taken: list[list[tuple]] = [[] for _ in range(num_experts)]
    total = np.zeros(ranks, int)
    for index in np.ndindex(experts.shape):
        expert = experts[index]
        if not 0 <= expert < num_experts:
            continue
        rank[index] = holder = expert // per_rank
        full = len(taken[expert]) == capacity if capacity else total[holder] == rows
        if full:
            dropped[holder] += 1
            continue
        taken[expert].append(index)
        total[holder] += 1
    sizes = np.array([len(t) for t in taken], np.int32).reshape(ranks, per_rank)
    for expert, indices in enumerate(taken):
        holder, slot = divmod(expert, per_rank)
        first = slot * capacity if capacity else sizes[holder, :slot].sum()
        for i, index in enumerate(indices):
            row[index] = first + i
    return Routed(row, rank, sizes, dropped, rows, per_rank > 1)


def dispatch(x: np.ndarray, routed: Routed) -> np.ndarray:
    """Returns the rows of all ranks, (ranks, rows, D)."""
    out = np.zeros((len(x), routed.rows, x.shape[2]), x.dtype)
    for index in zip(*np.nonzero(routed.row >= 0), strict=True):
        out[routed.rank[index], routed.row[index]] = x[index[:2]]
    return out


def combine(y: np.ndarray, weights: np.ndarray, routed: Routed) -> np.ndarray:
    """Returns the weighted sums of all ranks' tokens, in the documented order."""
    ranks, tokens, choices = routed.row.shape
    wide: Any = np.promote_types(y.dtype, np.float32) if y.dtype.kind == "f" else np.float32
    out = np.zeros((ranks, tokens, y.shape[2]), y.dtype)
    for owner, token in np.ndindex(ranks, tokens):
        total = np.zeros(y.shape[2], wide)
        for rank in range(ranks):
            partial = np.zeros(y.shape[2], wide)
            for choice in range(choices):
                index = owner, token, choice
                if routed.rank[index] == rank and routed.row[index] >= 0:
                    row = y[rank, routed.row[index]].astype(wide)
                    product = weights[index].astype(wide) * row
                    if routed.sums_first:
                        partial += product
                    else:
                        total += product.astype(y.dtype).astype(wide)
            total += partial.astype(y.dtype).astype(wide)
        out[owner, token] = total.astype(y.dtype)
    return out


def float8(x: np.ndarray, block: int) -> np.ndarray:
    """Returns what receivers see of tokens that are sent as float8_e4m3fn."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    scales = np.where(largest > 0, largest * np.float32(1 / 448), np.float32(1))
    rounded = (blocks / scales).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return (rounded * scales).reshape(x.shape).astype(x.dtype)
