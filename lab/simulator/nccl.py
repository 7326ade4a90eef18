"""Models NCCL inside a host and over InfiniBand, with NCCL's own cost model."""

import math

from lab.simulator import constants as c


def seconds(
    op: str,
    total_bytes: int,
    hosts: int,
    efficiency: float = c.NCCL_EFFICIENCY,
    *,
    gpus_per_host: int = 1,
    adapters: int = 1,
) -> float:
    """Returns the modeled time of one call over InfiniBand, with NVLink inside the hosts.

    Args:
      op: the operation, by jax_cxl's name.
      total_bytes: as nccl-tests counts them (see model.element_count).
      hosts: number of hosts.
      efficiency: the fraction of the adapters' rate that NCCL reaches.
      gpus_per_host: number of GPUs of a host. Each is a rank.
      adapters: number of InfiniBand adapters of a host. The GPUs of the host share them evenly.
    """
    ranks = hosts * gpus_per_host
    rate = c.INFINIBAND * efficiency
    outside = _bytes_outside(op, total_bytes, hosts, gpus_per_host, adapters) / rate
    inside = 0.0
    if gpus_per_host > 1:
        inside = _bytes(op, total_bytes, ranks) / c.NVLINK
    hops = _ring_hops(op, hosts) if hosts > 1 else 0
    hops_inside = _ring_hops(op, ranks) - hops if gpus_per_host > 1 else 0
    times = [
        base + hops * hop + hops_inside * inner + max(outside, inside) / payload
        for base, hop, inner, payload in zip(
            c.NCCL_BASE, c.NCCL_RING_HOP, c.NCCL_NVLINK_HOP, c.NCCL_PAYLOAD, strict=True
        )
    ]
    if op == "all_reduce":
        # A tree: the message goes hop by hop up to the root, and then down again. So its bytes are
        # sent twice.
        depth = 2 * math.ceil(math.log2(hosts)) if hosts > 1 else 0
        outside = 2 * total_bytes / adapters / rate
        times += [
            base
            + depth * hop
            + 2 * (gpus_per_host - 1) * inner
            + max(outside, inside) / (c.NCCL_TREE_BANDWIDTH * payload)
            for base, hop, inner, payload in zip(
                c.NCCL_TREE_BASE,
                c.NCCL_TREE_HOP,
                c.NCCL_NVLINK_TREE_HOP,
                c.NCCL_PAYLOAD,
                strict=True,
            )
        ]
    return min(times)


def _ring_hops(op: str, n: int) -> int:
    """Returns how many consecutive hops a call makes among n ranks."""
    if op == "all_reduce":
        return 2 * (n - 1)
    if op in ("all_to_all", "gather", "scatter", "permute"):
        return 1  # point-to-point, all at once
    return n - 1


def _bytes_outside(op: str, total_bytes: float, hosts: int, gpus: int, adapters: int) -> float:
    """Returns the bytes through the busiest adapter, in its busier direction."""
    if op == "all_to_all":  # Each GPU sends to those of the other hosts.
        return gpus * (hosts - 1) / hosts * total_bytes / adapters
    if op in ("gather", "scatter", "permute"):  # All goes through one GPU of a host.
        return _bytes(op, total_bytes, hosts)
    # Each adapter has rings of its own. The bytes are divided evenly among the adapters.
    return _bytes(op, total_bytes, hosts * gpus) / adapters


def _bytes(op: str, total_bytes: float, n: int) -> float:
    """Returns the bytes through the busiest of `n` ranks, in its busier direction."""
    if op == "all_reduce":
        return 2 * (n - 1) / n * total_bytes
    if op in ("broadcast", "reduce", "permute"):
        return total_bytes
    return (n - 1) / n * total_bytes
