"""The sections of docs/performance.md on jax_cxl: against the paper's All, and against NCCL."""

import dataclasses
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
    twelve = model.Setting(hosts=12)
    short = [s for s in study.ALL_SIZES if study.gain("all_reduce", s, twelve) < 5]
    engine = dataclasses.replace(twelve, side_by_side=True)
    least = min(study.gain("all_reduce", s, engine) for s in short)
    return f"""### jax_cxl against the paper's All, 6 cards

{markdown(header, rows)}

all_reduce at 12 hosts stays below 5 from {bytes_text(short[0])} to {bytes_text(short[-1])}, where
the gets from 11 peers follow one another; side by side it would be {least:.1f} at least (below)."""


def infiniband() -> str:
    """Ours against NCCL."""
    rows = []
    for op in model.OPS:
        for hosts in _HOSTS:
            setting = model.Setting(hosts=hosts)
            cells = []
            for size in _TABLE_SIZES:
                over = study.over_infiniband(op, size, setting)
                of_bound = f" of {over.bound:.2f}" if over.ours < 1 and over.bound < 10 else ""
                cells.append(
                    f"{over.ours:.2f}{of_bound}" + ("†" if over.ours < 1 and over.forbidden else "")
                )
            rows.append((op if hosts == _HOSTS[0] else "", hosts, *cells))
    header = ("jax_cxl over NCCL", "hosts", *(bytes_text(s) for s in _TABLE_SIZES))
    return f"""### jax_cxl against NCCL on InfiniBand, 6 cards

† forbidden: the bytes that the operation must move (`cc/plan/bounds.h`) take longer over the GPUs'
links or the cards than InfiniBand takes. Twelve hosts share six cards, but have twelve adapters.
Beside a loss stands what that bound allows, where it is below 10: "0.94 of 1.05" is a plan at 90%
of the bound.

{markdown(header, rows)}

{_losses()}

{_efficiencies()}"""


def _losses() -> str:
    rows = []
    for op in model.OPS:
        for hosts in study.HOSTS:
            for run in study.losses(op, model.Setting(hosts=hosts)):
                first, last = run[0].size, run[-1].size
                rows.append(
                    (
                        op,
                        hosts,
                        bytes_text(first) + (f" to {bytes_text(last)}" if last > first else ""),
                        *(
                            _span([getattr(over, what) for over in run])
                            for what in ("ours", "bound", "side_by_side", "even", "apart")
                        ),
                    )
                )
    header = (
        "losses that no bound explains",
        "hosts",
        "sizes",
        "jax_cxl over NCCL",
        "the bound allows",
        "gets side by side, flags in lines",
        "cards never unequal",
        "reads and writes apart",
    )
    return f"""The rest of what is slower than InfiniBand, with its causes computed. Short messages:
the CUDA engine gets from one peer after another, each get a poll and a read's latency, and rings
doorbells behind fences, where NCCL's LL has its flags between the data. The same plans would reach
the sixth column if the gets of a round were one copy, and messages up to
{bytes_text(c.INLINE_BYTES)} carried flags in their lines. Long messages: ranks in step meet on
cards, which the seventh column does without (one card as fast as all); and reads wait for writes
that share a card's rate, which the last one does without.

{markdown(header, rows)}"""


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
published first; broadcast reads several cards side by side. all_gather and gather move the same
bytes, so that only shorter chunks and one launch for many copies are left to gain. Up to 64 KiB all
gains are those of one kernel against a copy and a doorbell of the host for each chunk.

{markdown(header, rows)}"""
