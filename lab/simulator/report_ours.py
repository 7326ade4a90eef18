"""The sections of docs/performance.md that compare jax_cxl with NCCL and with the bound."""

import statistics

from lab.simulator import constants as c, model, nccl, study
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
                nccl.seconds(op, s, 3, efficiency) / study.ours(op, s, study.MACHINE)
                for s in study.LARGE_SIZES
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
    """Returns the section on the bytes of calls, and on what they wait for."""
    size = 256 * c.MIB
    rows = []
    for op in model.OPS:
        for hosts in (3, 12):
            setting = model.Setting(hosts=hosts)
            block = model.element_count(op, size, hosts)
            plans = study.counted(op, hosts, setting.cards, block)
            bound = model.bound_seconds(op, size, setting)
            mine = model.ours(op, size, setting)
            rows.append(
                (
                    op if hosts == 3 else "",
                    hosts,
                    *(f"{value / size:.2f}" for value in plans["rank"]),
                    f"{mine.seconds / bound:.2f}",
                    f"{mine.busiest}, {mine.busy:.0%}",
                )
            )
    header = ("256 MiB", "hosts", "writes", "reads", "time over the bound", "busiest")
    return f"""### What limits a call

The table has the bytes that the busiest rank writes and reads, counted from the plans, as multiples
of the message. Then comes the time, divided by the bound of links and cards, and the busiest
resource, with the share of the time in which it is busy.

{markdown(header, rows)}"""
