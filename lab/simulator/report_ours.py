"""The sections of docs/performance.md on jax_cxl: against the paper's All, and against NCCL."""

import statistics

from lab.simulator import constants as c, model, nccl, study
from lab.simulator.report_paper import PAPER
from lab.simulator.tables import bytes_text, markdown

_HOSTS = (3, 6, 12)
_TABLE_SIZES = (
    c.KIB,
    16 * c.KIB,
    64 * c.KIB,
    c.MIB,
    16 * c.MIB,
    256 * c.MIB,
    4 * c.GIB,
)


def ours() -> str:
    """Returns the section that compares jax_cxl with the paper's All."""
    rows = []
    for op in model.OPS:
        for hosts in _HOSTS:
            setting = model.Setting(hosts=hosts)
            gains = study.gains(op, setting)
            rows.append(
                (
                    op if hosts == _HOSTS[0] else "",
                    hosts,
                    f"**{min(gains):.2f}**",
                    *(
                        f"{study.paper(op, s, setting) / study.ours(op, s, setting):.2f}"
                        for s in _TABLE_SIZES
                    ),
                )
            )
    header = ("jax_cxl over All", "hosts", "least", *(bytes_text(s) for s in _TABLE_SIZES))
    short = min(
        study.gain(op, size, model.Setting(hosts=hosts))
        for op in model.OPS
        for hosts in _HOSTS
        for size in study.ALL_SIZES
        if size <= 64 * c.KIB
    )
    return f"""### jax_cxl against the paper's All, 6 cards

{markdown(header, rows)}

The column "least" has the smallest ratio over all sizes from {bytes_text(study.ALL_SIZES[0])} to
{bytes_text(study.ALL_SIZES[-1])}. The smallest ratio over sizes of up to 64 KiB is {short:.2f}."""


def infiniband() -> str:
    """Returns the section that compares jax_cxl with NCCL over InfiniBand."""
    rows = []
    for op in model.OPS:
        for hosts in _HOSTS:
            setting = model.Setting(hosts=hosts)
            cells = []
            for size in _TABLE_SIZES:
                over = study.over_infiniband(op, size, setting)
                of_bound = f" of {over.bound:.2f}" if over.ours < 1 else ""
                cells.append(
                    f"{over.ours:.2f}{of_bound}" + ("†" if over.ours < 1 and over.forbidden else "")
                )
            rows.append((op if hosts == _HOSTS[0] else "", hosts, *cells))
    header = ("jax_cxl over NCCL", "hosts", *(bytes_text(s) for s in _TABLE_SIZES))
    return f"""### jax_cxl against NCCL on InfiniBand, 6 cards

† No library can be faster than NCCL here. Three things alone take longer over the GPUs' links or
the cards than the whole call over InfiniBand: the bytes that the operation must move
(`cc/simulator/bounds.h`), the start of a kernel, and the latency of the first and the last byte
to their readers. Twelve hosts share six cards, but have twelve adapters. A ratio below 1 is
followed by the ratio that this bound allows: "0.94 of 1.05" is a plan at 90% of the bound.

{markdown(header, rows)}

{_losses()}

{_efficiencies()}"""


def _losses() -> str:
    rows = {n: _losses_at(n) for n in sorted(study.HOSTS + study.OTHER_HOSTS)}
    free = [str(n) for n in rows if not rows[n]]
    header = (
        "losses that no bound explains",
        "hosts",
        "sizes",
        "jax_cxl over NCCL",
        "the bound allows",
        "cards never unequal",
        "reads and writes apart",
    )
    sizes = f"{bytes_text(study.ALL_SIZES[0])} to {bytes_text(study.ALL_SIZES[-1])}"
    return f"""At {", ".join(free[:-1])} and {free[-1]} hosts there are no other losses
against InfiniBand, at any size from {sizes}. The table lists the losses at the other
numbers of hosts up to 12. These losses are small, and the bound allows little more than 1 there.
The last two columns show what causes them. In the variant "cards never unequal", the model has one
card that is as fast as all cards together. This changes little. In the variant "reads and writes
apart", no read waits for writes that share a card's rate. This removes the losses. The cause is
that ranks in step all write at the same time, and write nothing in the rest of a round, although a
card can then serve reads and writes.

{markdown(header, [row for n in rows for row in rows[n]])}"""


def _losses_at(hosts: int) -> list[tuple[str | int, ...]]:
    rows: list[tuple[str | int, ...]] = []
    for op in model.OPS:
        for run in study.losses(op, model.Setting(hosts=hosts)):
            first, last = run[0].size, run[-1].size
            rows.append(
                (
                    op,
                    hosts,
                    bytes_text(first) + (f" to {bytes_text(last)}" if last > first else ""),
                    *(
                        _span([getattr(over, what) for over in run])
                        for what in ("ours", "bound", "even", "apart")
                    ),
                )
            )
    return rows


def _span(values: list[float]) -> str:
    low, high = (
        f"{value:.3g}" if value >= 10 else f"{value:.2f}" for value in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"


def _efficiencies() -> str:
    rows = []
    for efficiency in (c.NCCL_EFFICIENCY, 0.7, 0.9):
        cells = []
        for op in model.OPS:
            values = [
                nccl.seconds(op, s, 3, efficiency) / study.ours(op, s, PAPER)
                for s in study.PAPER_SIZES
            ]
            cells.append(f"{statistics.mean(values):.2f}")
        rows.append((f"{efficiency}", *cells))
    header = ("efficiency of NCCL", *model.OPS)
    return f"""These figures depend on the one calibrated constant, the efficiency of NCCL in
the model. The next table shows how many times as fast as NCCL the pool is, for
three values of this constant, as means over 1 MiB to 4 GiB at 3 hosts:

{markdown(header, rows)}

Against a well-tuned NCCL on a 25 GB/s network, a pool with 20 GB/s for each GPU is slower for large
messages."""


def causes() -> str:
    """Returns the section on where the gains of jax_cxl come from."""
    size = 256 * c.MIB
    rows = []
    for op in model.OPS:
        for hosts in (3, 12):
            setting = model.Setting(hosts=hosts)
            block = model.element_count(op, size, hosts)
            plans = study.counted(op, hosts, setting.cards, block)
            paper_bytes = study.bytes_of_paper(op, hosts, size)
            bound = model.bound_seconds(op, size, setting)
            mine, theirs = model.ours(op, size, setting), model.paper(op, size, setting)
            rows.append(
                (
                    op if hosts == 3 else "",
                    hosts,
                    *(f"{value / size:.2f}" for value in paper_bytes),
                    *(f"{value / size:.2f}" for value in plans["rank"]),
                    f"{theirs.seconds / bound:.2f}",
                    f"{mine.seconds / bound:.2f}",
                    f"{theirs.busiest}, {theirs.busy:.0%}",
                    f"{mine.busiest}, {mine.busy:.0%}",
                )
            )
    header = (
        "256 MiB",
        "hosts",
        "All writes",
        "reads",
        "jax_cxl writes",
        "reads",
        "All over the bound",
        "jax_cxl over it",
        "All's busiest",
        "jax_cxl's busiest",
    )
    return f"""### Where the gains come from

The table has three kinds of figures. The first columns have the bytes that the busiest rank writes
and reads, counted from the plans, as multiples of the message. Then comes the time, divided by the
bound of links and cards. The last columns name the busiest resource, with the share of the time in
which it is busy.

- all_reduce and reduce move fewer bytes.
- reduce_scatter, all_to_all and scatter overlap more, because readers start with the bytes that are
  published first. In all_reduce, even and odd ranks take turns to publish their inputs.
- The round of each rank lies on all cards. So the cards are equally loaded, even if many ranks read
  from one rank, or if the number of ranks is not a multiple of the number of cards.
- all_gather and gather move the same bytes in the same order as All. They gain only from shorter
  chunks, and from one launch for many copies.
- Up to 64 KiB all gains come from using a single kernel, and in the shortest calls from flags
  between the data. For each chunk, All needs a copy and a doorbell of the host.

{markdown(header, rows)}"""
