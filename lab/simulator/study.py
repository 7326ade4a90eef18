"""Computes the comparisons of docs/performance.md. All times are modeled."""

import dataclasses
import functools
import itertools
import statistics

from lab.simulator import _simulator, constants as c, model, nccl

# The sizes that the paper averages over, and smaller ones.
PAPER_SIZES = tuple(c.MIB << i for i in range(0, 13, 2))
SMALL_SIZES = tuple(c.KIB << i for i in range(0, 10, 2))
ALL_SIZES = SMALL_SIZES + PAPER_SIZES
# Numbers of hosts, with six cards. OTHER_HOSTS neither divide six nor are multiples of it.
HOSTS = (2, 3, 4, 6, 8, 12)
OTHER_HOSTS = (5, 7, 9, 10, 11)
GROWTH_SIZES = tuple(size for size in PAPER_SIZES if size >= 64 * c.MIB)
# Every operation that has plans. For these, the bytes of the plans are counted.
PLANNED = ("barrier", *model.OPS, "permute", "scan", "exscan")


@functools.cache
def ours(op: str, size: int, setting: model.Setting) -> float:
    return model.ours(op, size, setting).seconds


@functools.cache
def paper(op: str, size: int, setting: model.Setting, variant: str = "all") -> float:
    return model.paper(op, size, setting, variant).seconds


def average_speed_of_paper(op: str, setting: model.Setting) -> float:
    """Returns the mean speed of the paper's All relative to NCCL, over the paper's sizes."""
    return statistics.mean(
        nccl.seconds(op, size, setting.hosts) / paper(op, size, setting) for size in PAPER_SIZES
    )


def average_speed_of_ours(op: str, setting: model.Setting) -> float:
    return statistics.mean(
        nccl.seconds(op, size, setting.hosts) / ours(op, size, setting) for size in PAPER_SIZES
    )


def over_variant(op: str, variant: str, setting: model.Setting) -> list[float]:
    """Returns the speed of the paper's All relative to its variant `variant`, for each size."""
    return [paper(op, s, setting, variant) / paper(op, s, setting) for s in PAPER_SIZES]


def over_aggregate(
    op: str, size: int, setting: model.Setting, *, bytes_only: bool = False
) -> float:
    """Returns All's speed relative to Aggregate at one size.

    With `bytes_only` only the time for moving bytes counts.
    """
    all_, aggregate = (
        model.paper(op, size, setting, variant, bytes_only=bytes_only).seconds
        for variant in ("all", "aggregate")
    )
    return aggregate / all_


def growth(
    op: str, size: int, library: str = "paper", orders: tuple[str, ...] = c.READER_ORDERS
) -> float:
    """Returns a call's time at 12 hosts divided by its time at 3 hosts."""
    times = []
    for hosts in (3, 12):
        setting = model.Setting(hosts=hosts, orders=orders)
        times.append(paper(op, size, setting) if library == "paper" else ours(op, size, setting))
    return times[1] / times[0]


def growth_of_parts(op: str, size: int) -> tuple[float, float, float]:
    """Splits the growth of the time of the paper's All, from 3 to 12 hosts, into its causes.

    Returns:
      The growth of the time for moving bytes, the growth of the rest of the time, and the share of
      this rest in the time at 3 hosts.
    """
    total, moving = [], []
    for hosts in (3, 12):
        setting = model.Setting(hosts=hosts)
        total.append(paper(op, size, setting))
        moving.append(model.paper(op, size, setting, bytes_only=True).seconds)
    rest = [a - b for a, b in zip(total, moving, strict=True)]
    return moving[1] / moving[0], rest[1] / rest[0], rest[0] / total[0]


def gain(op: str, size: int, setting: model.Setting) -> float:
    """Returns the speed of jax_cxl relative to the paper's All."""
    return paper(op, size, setting) / ours(op, size, setting)


def gains(op: str, setting: model.Setting) -> list[float]:
    """Returns `gain` for each size in ALL_SIZES."""
    return [gain(op, size, setting) for size in ALL_SIZES]


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


def limits_of_paper(op: str, setting: model.Setting) -> tuple[float, float]:
    """Returns two bounds of the paper's average speed relative to NCCL over InfiniBand.

    Returns:
      The average that links and cards allow any library, and the average that the bytes of All
      allow if publication and retrieval overlap entirely and nothing else costs time.
    """
    anybody, its_bytes = [], []
    for size in PAPER_SIZES:
        baseline = nccl.seconds(op, size, setting.hosts)
        anybody.append(baseline / model.bound_seconds(op, size, setting))
        written, read = bytes_of_paper(op, setting.hosts, size)
        its_bytes.append(baseline / max(written / c.GPU_OUT, read / c.GPU_IN))
    return statistics.mean(anybody), statistics.mean(its_bytes)


def overlap_of_paper(op: str, size: int, setting: model.Setting) -> float:
    """Returns how well All overlaps publication and retrieval.

    Returns:
      The share of the shorter of the two times that is hidden behind the longer one.
    """
    written, read = (
        b / r
        for b, r in zip(bytes_of_paper(op, setting.hosts, size), (c.GPU_OUT, c.GPU_IN), strict=True)
    )
    moving = model.paper(op, size, setting, bytes_only=True).seconds
    return (written + read - moving) / min(written, read)


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


def bytes_of_paper(op: str, ranks: int, size: int) -> tuple[float, float]:
    """Returns the bytes (written, read) of the busiest rank in the paper's All."""
    block = model.element_count(op, size, ranks)
    others = (ranks - 1) * block
    return {
        "all_gather": (block, others),
        "all_reduce": (block, others),
        "reduce_scatter": (others, others),
        "all_to_all": (others, others),
        "broadcast": (block, block),
        "reduce": (block, others),
        "gather": (block, others),
        "scatter": (others, block),
    }[op]


def best_slot(op: str, size: int, setting: model.Setting) -> dict[int, float]:
    """Returns the time of a call by slot size, relative to the time with the default slot size."""
    slots = [64 * c.KIB << i for i in range(7)]
    return {
        slot: ours(op, size, dataclasses.replace(setting, slot_bytes=slot))
        / ours(op, size, setting)
        for slot in slots
    }


def bus_factor(op: str, ranks: int) -> float:
    """Returns the factor of nccl-tests: bus bandwidth = factor * size / time."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if op in ("broadcast", "reduce", "permute") else (ranks - 1) / ranks
