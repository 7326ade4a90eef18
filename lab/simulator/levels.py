"""Models collectives over several hosts of several GPUs, flat and in levels.

Flat: each GPU is a rank of the pool. In levels: JAX's own collectives communicate between the GPUs
of a host, and the pool between the hosts. GPU g of each host is in group g. All groups call at the
same time and share the cards and the links of their hosts. Each group runs jax_cxl's own plans
(`cc/simulator`).

The model has the stages and chunks that `jax_cxl/_lowering/levels/compose.py` builds, in the same
order.
"""

import dataclasses
import functools
import itertools

from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels import table
from lab.simulator import _simulator, constants as c, model, nccl

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# Operations in which the GPUs of a host exchange parts before the call through the pool, and
# operations in which they gather the results after it.
_EXCHANGED = ("all_reduce", "reduce_scatter", "all_to_all")
_GATHERED = ("all_reduce", "all_gather")
# Operations in which each GPU adds up the parts that it received in this exchange.
_ADDED = ("all_reduce", "reduce_scatter")
# How often a GPU copies a chunk before the pool to reorder its blocks. The exchange inside a host
# and the call through the pool need the blocks in different orders.
_REORDERED = {"reduce_scatter": 1, "all_to_all": 2}


@dataclasses.dataclass(frozen=True)
class Stages:
    """Seconds that each stage takes by itself, in a call that works in equal chunks.

    Attributes:
      chunks: number of chunks.
      slicing: copies all chunks out of the operand.
      before: the stage of one chunk inside a host, before the pool.
      pool: the stage of one chunk through the pool.
      after: the stage of one chunk inside a host, after the pool.
      joining: copies all chunks into the result.
    """

    chunks: int
    slicing: float
    before: float
    pool: float
    after: float
    joining: float

    @property
    def one_after_another(self) -> float:
        each = self.before + self.pool + self.after
        return self.slicing + self.chunks * each + self.joining

    @property
    def overlapped(self) -> float:
        """Returns the time if the stages through the pool overlap with the stages inside the hosts.

        The hosts first run the stages `before` of all chunks, and then the stages `after` of all.
        """
        inside, pool = self.slicing, 0.0
        arrivals = []
        for _ in range(self.chunks):
            inside += self.before
            pool = max(pool, inside) + self.pool
            arrivals.append(pool)
        for arrival in arrivals:
            inside = max(inside, arrival) + self.after
        return inside + self.joining


def pool_bytes(op: str, total_bytes: int, gpus: int) -> int:
    """Returns the size of each group's call through the pool, as nccl-tests counts it."""
    return total_bytes if op == "all_to_all" else max(1, total_bytes // gpus)


@functools.cache
def _through_pool(op: str, size: int, setting: model.Setting, groups: int) -> float:
    return model.ours(op, size, setting, groups=groups).seconds


def stages(op: str, total_bytes: int, setting: model.Setting, chunks: int) -> Stages:
    gpus, links = setting.gpus_per_host, setting.inside
    chunk_bytes = total_bytes // chunks
    alike = dataclasses.replace(setting, inside="nvlink")
    before = after = 0.0
    if op in _EXCHANGED:
        before += nccl.inside_seconds("all_to_all", chunk_bytes, gpus, links)
    if op in _ADDED:
        before += (1 + 1 / gpus) * chunk_bytes / c.MEMORY
    before += _REORDERED.get(op, 0) * _copy_seconds(chunk_bytes)
    if op in _GATHERED:
        after += nccl.inside_seconds("all_gather", chunk_bytes, gpus, links)
    divided = chunks > 1
    result_bytes = total_bytes // setting.ranks if op == "reduce_scatter" else total_bytes
    # An all_gather always needs this copy, because it puts the blocks into their order.
    joined = divided or op == "all_gather"
    return Stages(
        chunks=chunks,
        slicing=_copy_seconds(_operand_bytes(op, total_bytes, setting)) if divided else 0.0,
        before=before,
        pool=_through_pool(op, pool_bytes(op, chunk_bytes, gpus), alike, gpus),
        after=after,
        joining=_copy_seconds(result_bytes) if joined else 0.0,
    )


def _operand_bytes(op: str, total_bytes: int, setting: model.Setting) -> int:
    return total_bytes // setting.ranks if op == "all_gather" else total_bytes


def _copy_seconds(num_bytes: float) -> float:
    """Returns the time of a copy inside a GPU, which both reads and writes the GPU's memory."""
    return 2 * num_bytes / c.MEMORY


def seconds(
    op: str, total_bytes: int, setting: model.Setting, chunk_bytes: int = table.CHUNK_BYTES
) -> float:
    """Returns the time of a call in levels.

    If NVLink joins the GPUs of a host, stages inside the host take no bandwidth from the links to
    the pool, so the stages of different chunks overlap. Otherwise all stages need the same PCIe
    port of a GPU, and nothing overlaps.

    Args:
      chunk_bytes: the fewest bytes of a chunk (`_lowering/levels/table.py`).
    """
    if setting.gpus_per_host == 1:
        return model.ours(op, total_bytes, setting).seconds
    operand_bytes = _operand_bytes(op, total_bytes, setting)
    grid = setting.hosts, setting.gpus_per_host
    chunks = table.chunks(Op[op.upper()], operand_bytes, grid, chunk_bytes)
    each = stages(op, total_bytes, setting, chunks)
    return each.overlapped if setting.inside == "nvlink" else each.one_after_another


def flat_seconds(op: str, total_bytes: int, setting: model.Setting) -> float:
    """Returns the time with each GPU as a rank of the pool. Links inside hosts are not used."""
    return _through_pool(op, total_bytes, dataclasses.replace(setting, inside="nvlink"), 1)


@dataclasses.dataclass(frozen=True)
class LinkBytes:
    """Bytes of one call, counted from the plans.

    Attributes:
      link: bytes through the busiest link of a host: (from the host, to the host).
      card: bytes of the busiest card: (written, read).
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
    """Returns the fewest bytes that any library could move.

    This assumes that a host is one rank, and that all links and all cards carry equal shares.
    """
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
    """Returns the ranges of `sizes`, as (first, last), in which levels are faster than flat."""
    faster = [seconds(op, size, setting) < flat_seconds(op, size, setting) for size in sizes]
    runs = itertools.groupby(zip(faster, sizes, strict=True), key=lambda pair: pair[0])
    found = []
    for pays, run in runs:
        members = [size for _, size in run]
        if pays:
            found.append((members[0], members[-1]))
    return found
