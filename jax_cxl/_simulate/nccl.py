"""NCCL over InfiniBand: rings, a tree and point-to-point, as NCCL's own cost model has them."""

import math

from jax_cxl._simulate import constants as c


def seconds(op: str, total_bytes: int, hosts: int, efficiency: float = c.NCCL_EFFICIENCY) -> float:
    """Modelled time of one call with one GPU and one adapter a host.

    Args:
      op: by jax_cxl's name.
      total_bytes: as nccl-tests counts them (see model.element_count).
      efficiency: the part of the adapter's rate that NCCL reaches.
    """
    rate = c.INFINIBAND * efficiency
    times = [
        base + _ring_hops(op, hosts) * hop + _bytes(op, total_bytes, hosts) / (rate * payload)
        for base, hop, payload in zip(c.NCCL_BASE, c.NCCL_RING_HOP, c.NCCL_PAYLOAD, strict=True)
    ]
    if op == "all_reduce":
        # Up and down again; each direction carries the message once.
        depth = 2 * math.ceil(math.log2(hosts)) if hosts > 1 else 0
        times += [
            base + depth * hop + 2 * total_bytes / (rate * c.NCCL_TREE_BANDWIDTH * payload)
            for base, hop, payload in zip(
                c.NCCL_TREE_BASE, c.NCCL_TREE_HOP, c.NCCL_PAYLOAD, strict=True
            )
        ]
    return min(times)


def _ring_hops(op: str, n: int) -> int:
    """Hops that follow each other."""
    if op == "all_reduce":
        return 2 * (n - 1)
    if op in ("all_to_all", "gather", "scatter", "permute"):
        return 1  # point-to-point, all at once
    return n - 1


def _bytes(op: str, total_bytes: int, n: int) -> float:
    """Bytes through the busiest adapter, in its busier direction."""
    if op == "all_reduce":
        return 2 * (n - 1) / n * total_bytes
    if op in ("broadcast", "reduce", "permute"):
        return total_bytes
    return (n - 1) / n * total_bytes
