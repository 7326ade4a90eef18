"""The sections of docs/performance.md on jax_cxl: against the paper's All, and against NCCL."""

import statistics

from jax_cxl._simulate import constants as c
from jax_cxl._simulate import model, nccl, study
from jax_cxl._simulate.report_paper import PAPER
from jax_cxl._simulate.tables import bytes_text, markdown

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
    """Ours against the paper's All."""
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

Up to 64 KiB the least is {short:.2f}."""


def infiniband() -> str:
    """Ours against NCCL."""
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

† forbidden: the bytes that the operation must move (`cc/plan/bounds.h`), the start of a kernel and
the way of the first and last byte to their readers take longer over the GPUs' links or the cards
than InfiniBand takes. Twelve hosts share six cards, but have twelve adapters. Beside a loss stands
what that bound allows: "0.94 of 1.05" is a plan at 90% of the bound.

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
    return f"""At {", ".join(free[:-1])} and {free[-1]} hosts nothing else is slower than
InfiniBand, at any size from {sizes}. At the other numbers up to 12 there is what
follows, by little, where the bound allows little. The sixth column does without
unequally busy cards (one card as fast as all): they are not what is missing. The last one does
without reads that wait for writes which share a card's rate: ranks in step write at the same time,
and then not at all for the rest of a round, when a card could take both.

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
    return f"""The one calibrated constant matters here. Mean over 1 MiB to 4 GiB at 3 hosts:

{markdown(header, rows)}

With a well-tuned NCCL a pool at 20 GB/s a GPU is behind a 25 GB/s network for large messages."""


def causes() -> str:
    """Where the gains come from."""
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

Bytes of the busiest rank in messages, counted from the plans; time over the bound of links and
cards; the resource with the least time to spare and how busy it is. all_reduce and reduce move
fewer bytes; reduce_scatter, all_to_all and scatter overlap more, because readers start with what is
published first, and in all_reduce even and odd ranks put their inputs in turn; each rank's round
lies on all cards, so that many readers of one rank, and ranks that cards do not divide, load cards
alike. all_gather and gather move the same bytes in the same order, so that besides only shorter
chunks and one launch for many copies are left to gain. Up to 64 KiB all gains are
those of one kernel, in the shortest calls with flags between the data, against a copy and a
doorbell of the host for each chunk.

{markdown(header, rows)}"""
