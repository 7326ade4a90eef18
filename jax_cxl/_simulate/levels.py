"""Collectives over several hosts of several GPUs, flat and in levels. Everything is modelled.

Flat: each GPU is a rank of the pool. In levels: JAX's own collectives between the GPUs of a host,
and the pool between the hosts, where GPU g of each host is in group g. All groups call at the same
time, share the links of their hosts and the cards, and run jax_cxl's own plans (`cc/engine/sim`).
"""

import dataclasses
import functools
import itertools

from jax_cxl import _simulator
from jax_cxl._simulate import constants as c
from jax_cxl._simulate import model, nccl

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# The stage inside the hosts before the pool, and the stage inside the hosts after the pool.
_BEFORE = {
    "all_reduce": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
}
_AFTER = {"all_reduce": "all_gather", "all_gather": "all_gather"}
# Hosts and GPUs take turns in the order of the blocks: what a GPU has is put in order once.
_REORDERED = ("all_gather", "reduce_scatter", "all_to_all")


@dataclasses.dataclass(frozen=True)
class Stages:
    """Seconds of the three stages of a call, each by itself."""

    before: float
    pool: float
    after: float


def pool_bytes(op: str, total_bytes: int, gpus: int) -> int:
    """Size of the call of each group through the pool, as nccl-tests counts."""
    return total_bytes if op == "all_to_all" else max(1, total_bytes // gpus)


@functools.cache
def _through_pool(op: str, size: int, setting: model.Setting, groups: int) -> float:
    return model.ours(op, size, setting, groups=groups).seconds


def stages(op: str, total_bytes: int, setting: model.Setting) -> Stages:
    gpus, links = setting.gpus_per_host, setting.inside
    alike = dataclasses.replace(setting, inside="nvlink")
    pool = _through_pool(op, pool_bytes(op, total_bytes, gpus), alike, gpus)
    if op in _REORDERED:
        pool += 2 * total_bytes / c.MEMORY
    before, after = (
        nccl.inside_seconds(stage[op], total_bytes, gpus, links) if op in stage else 0.0
        for stage in (_BEFORE, _AFTER)
    )
    return Stages(before, pool, after)


def seconds(op: str, total_bytes: int, setting: model.Setting) -> float:
    """Time in levels, with the best number of chunks.

    Over NVLink, which takes nothing from the links to the pool, the stages of different chunks
    overlap. Otherwise all stages need the same PCIe port of a GPU, and nothing does.
    """
    if setting.gpus_per_host == 1:
        return model.ours(op, total_bytes, setting).seconds
    return min(
        _pipelined(stages(op, total_bytes // chunks, setting), chunks)
        for chunks in (c.CHUNKS if setting.inside == "nvlink" else (1,))
        if chunks == 1 or total_bytes // chunks >= setting.ranks
    )


def _pipelined(each: Stages, chunks: int) -> float:
    """Chunks go one after another through the pool, and one after another inside.

    A chunk's first stage comes before the last stage of the chunk before it, so that the pool has
    the next chunk in time.
    """
    inside = ready = each.before
    pool = 0.0
    for chunk in range(chunks):
        pool = max(pool, ready) + each.pool
        if each.before and chunk + 1 < chunks:
            inside = ready = inside + each.before
        if each.after:
            inside = max(inside, pool) + each.after
    return max(pool, inside)


def flat_seconds(op: str, total_bytes: int, setting: model.Setting) -> float:
    """Time with each GPU as a rank of the pool. What joins the GPUs of a host does not matter."""
    return _through_pool(op, total_bytes, dataclasses.replace(setting, inside="nvlink"), 1)


@dataclasses.dataclass(frozen=True)
class LinkBytes:
    """Bytes of one call, counted from the plans.

    Attributes:
      link: through the busiest link of a host, (from the host, to the host).
      card: of the busiest card, (written, read).
    """

    link: tuple[float, float]
    card: tuple[float, float]


def counted_bytes(op: str, total_bytes: int, setting: model.Setting, *, flat: bool) -> LinkBytes:
    groups = 1 if flat else setting.gpus_per_host
    members = setting.ranks // groups
    size = total_bytes if flat else pool_bytes(op, total_bytes, groups)
    counted = _simulator.count_plan_bytes(
        op,
        members,
        model.element_count(op, size, members),
        1,
        geometry=setting.geometry_of(members),
        cards=setting.cards,
        groups=groups,
    )
    gpus_of_a_link = -(-setting.gpus_per_host // setting.links_per_host)
    written, read = counted["rank"]
    return LinkBytes((gpus_of_a_link * written, gpus_of_a_link * read), counted["card"])


def least_bytes(op: str, total_bytes: int, setting: model.Setting) -> LinkBytes:
    """The same for the fewest bytes: each host is one rank, and links and cards share evenly."""
    hosts, gpus = setting.hosts, setting.gpus_per_host
    if op == "all_reduce":
        count = total_bytes
    else:
        count = total_bytes // hosts * (gpus if op == "all_to_all" else 1)
    bound = _simulator.bound_bytes(op, hosts, count, 1)
    written, read = (part / setting.links_per_host for part in bound["rank"])
    on_card, from_card = (part / setting.cards for part in bound["all"])
    return LinkBytes((written, read), (on_card, from_card))


def paying(op: str, setting: model.Setting, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Runs of sizes, (first, last), at which levels are faster than flat."""
    faster = [seconds(op, size, setting) < flat_seconds(op, size, setting) for size in sizes]
    runs = itertools.groupby(zip(faster, sizes, strict=True), key=lambda pair: pair[0])
    found = []
    for pays, run in runs:
        members = [size for _, size in run]
        if pays:
            found.append((members[0], members[-1]))
    return found
