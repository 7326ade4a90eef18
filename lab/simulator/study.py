"""Computes the comparisons of docs/performance.md. All times are modeled."""

import dataclasses
import functools
import itertools
import statistics

from lab.simulator import _simulator, constants as c, model, nccl

# The machine of most tables: three hosts and six cards.
MACHINE = model.Setting()
LARGE_SIZES = tuple(c.MIB << i for i in range(0, 13, 2))
SMALL_SIZES = tuple(c.KIB << i for i in range(0, 10, 2))
ALL_SIZES = SMALL_SIZES + LARGE_SIZES
# Numbers of hosts, with six cards. OTHER_HOSTS neither divide six nor are multiples of it.
HOSTS = (2, 3, 4, 6, 8, 12)
OTHER_HOSTS = (5, 7, 9, 10, 11)
# Every operation that has plans. For these, the bytes of the plans are counted.
PLANNED = ("barrier", *model.OPS, "permute", "scan", "exscan")


@functools.cache
def ours(op: str, size: int, setting: model.Setting) -> float:
    return model.ours(op, size, setting).seconds


def average_speed(op: str, setting: model.Setting) -> float:
    """Returns the mean speed of jax_cxl relative to NCCL, over LARGE_SIZES."""
    return statistics.mean(
        nccl.seconds(op, size, setting.hosts) / ours(op, size, setting) for size in LARGE_SIZES
    )


@dataclasses.dataclass(frozen=True)
class OverInfiniband:
    """Speeds of one call relative to NCCL over InfiniBand.

    Attributes:
      size: bytes of the call.
      ours: the speed of jax_cxl.
      bound: the speed that links, cards and the latency of a flag allow any library
        (model.least_seconds).
      even: the speed of jax_cxl if no card were ever busier than another.
      apart: the speed of jax_cxl if reads and writes did not share the rate of a card.
    """

    size: int
    ours: float
    bound: float
    even: float
    apart: float

    @property
    def forbidden(self) -> bool:
        return self.bound <= 1

    @property
    def lost(self) -> bool:
        return self.ours < 1 and not self.forbidden


@functools.cache
def over_infiniband(op: str, size: int, setting: model.Setting) -> OverInfiniband:
    baseline = nccl.seconds(op, size, setting.hosts)
    return OverInfiniband(
        size=size,
        ours=baseline / ours(op, size, setting),
        bound=baseline / model.least_seconds(op, size, setting),
        even=baseline / ours(op, size, dataclasses.replace(setting, even=True)),
        apart=baseline / ours(op, size, dataclasses.replace(setting, apart=True)),
    )


def losses(op: str, setting: model.Setting) -> list[list[OverInfiniband]]:
    """Returns the results in which jax_cxl is slower than NCCL although the bound is faster.

    Each list has the results of consecutive sizes.
    """
    results = [over_infiniband(op, size, setting) for size in ALL_SIZES]
    runs = itertools.groupby(results, key=lambda result: result.lost)
    return [list(run) for lost, run in runs if lost]


def counted(op: str, ranks: int, cards: int, block: int) -> dict[str, tuple[int, int]]:
    """Returns the bytes (written, read) of the plans of a call.

    The keys are `rank` (the busiest rank), `card` (the busiest card) and `all`.
    """
    geometry = _simulator.gpu_geometry(cards, ranks)
    geometry.all_read_bytes = 0
    return _simulator.count_plan_bytes(op, ranks, block, 1, geometry=geometry, cards=cards)


def scaling(op: str, ranks: int, cards: int) -> tuple[float, float, float]:
    """Returns how far plans exceed the bound on bytes, and how evenly they load the cards.

    Returns:
      Three ratios: the bytes of the busiest rank to the bound for a rank, the bytes of all ranks to
      the bound for all, and the bytes of the busiest card to the mean of all cards.
    """
    block = _scaling_block(op, ranks, cards)
    plans = counted(op, ranks, cards, block)
    bound = _simulator.bound_bytes(op, ranks, block, 1)
    if not sum(bound["all"]):
        return 1.0, 1.0, 1.0
    per_rank = sum(plans["rank"]) / sum(bound["rank"])
    total = sum(plans["all"]) / sum(bound["all"])
    per_card = max(
        most * cards / all_ for most, all_ in zip(plans["card"], plans["all"], strict=True)
    )
    return per_rank, total, per_card


def _scaling_block(op: str, ranks: int, cards: int) -> int:
    """Returns the size of a block that fills a rank's ring twice, so that each slot is used."""
    geometry = _simulator.gpu_geometry(cards, ranks)
    slots = 2 * geometry.num_slots
    if op in ("reduce_scatter", "all_to_all", "scatter"):
        return slots * (
            geometry.slot_bytes // ranks // geometry.part_alignment * geometry.part_alignment
        )
    return slots * geometry.slot_bytes


def bus_factor(op: str, ranks: int) -> float:
    """Returns the factor of nccl-tests: bus bandwidth = factor * size / time."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if op in ("broadcast", "reduce", "permute") else (ranks - 1) / ranks
