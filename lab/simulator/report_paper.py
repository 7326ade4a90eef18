"""The sections of docs/performance.md on the paper: its averages, variants and growth."""

import statistics

from lab.simulator import constants as c, model, nccl, study
from lab.simulator.tables import bytes_text, figures_text, markdown

# The machine of the paper: three hosts and six cards.
PAPER = model.Setting()


def _implied(op: str) -> float:
    """Returns the rate of NCCL, in GB/s, at which the modeled All has the paper's speedup."""
    rate = c.INFINIBAND * c.NCCL_EFFICIENCY / c.GB
    return rate * study.average_speed_of_paper(op, PAPER) / c.PAPER_AVERAGES[op]


def averages() -> str:
    """Returns the section on the average speeds: the paper's, the model's, and why they differ."""
    rows = []
    for op in model.OPS:
        paper, average = c.PAPER_AVERAGES[op], study.average_speed_of_paper(op, PAPER)
        anybody, its_bytes = study.limits_of_paper(op, PAPER)
        deviation = average / paper - 1
        rows.append(
            (
                op,
                f"{paper:.2f}",
                f"{average:.2f}",
                f"{deviation:+.0%}",
                f"{_implied(op):.1f}",
                f"{anybody:.2f}",
                f"{its_bytes:.2f}",
                f"{study.average_speed_of_ours(op, PAPER):.2f}",
                _reason(op) if abs(deviation) > 0.15 else "",
            )
        )
    header = (
        "3 hosts, 6 cards",
        "paper's All",
        "modeled All",
        "deviation",
        "NCCL's GB/s that would explain it",
        "the links allow",
        "All's bytes allow",
        "modeled jax_cxl",
        "why it deviates",
    )
    small = ", ".join(
        f"{op} {nccl.seconds(op, c.MIB, 3) / study.paper(op, c.MIB, PAPER):.2f} "
        f"at 1 MiB and {nccl.seconds(op, 64 * c.KIB, 3) / study.paper(op, 64 * c.KIB, PAPER):.2f} "
        f"at 64 KiB (paper {figure})"
        for op, figure in c.PAPER_SMALL.items()
    )
    implied = [_implied(op) for op in model.OPS]
    large = nccl.seconds("all_reduce", 4 * c.GIB, 3) / study.paper("all_reduce", 4 * c.GIB, PAPER)
    return f"""### The paper's averages

The table has speeds relative to NCCL on 200 Gb/s InfiniBand, as means over 1 MiB to 4 GiB. Two
columns are bounds, relative to the modeled NCCL. "The links allow" holds for any library: the
bytes of `cc/simulator/bounds.h` at 20 GB/s. "All's bytes allow" holds for All: it publishes and
retrieves its own bytes at the same time, and nothing else costs time.

{markdown(header, rows)}

The paper's eight figures need NCCL rates from {min(implied):.0f} to {max(implied):.0f} GB/s on one
network of 25 GB/s. A model with one rate cannot give all eight, and a model with eight rates would
only repeat its input. Short calls lose as in the paper: {small}. A large all-reduce is nearly as
fast as NCCL's: {large:.2f} (paper {c.PAPER_LARGE_ALL_REDUCE}, the figure that calibrated
the model)."""


def _reason(op: str) -> str:
    """Returns why the model's average differs: the first limit that the paper's figure exceeds."""
    paper = c.PAPER_AVERAGES[op]
    anybody, its_bytes = study.limits_of_paper(op, PAPER)
    hidden = study.overlap_of_paper(op, 256 * c.MIB, PAPER)
    if paper > anybody:
        return (
            f"no library reaches {paper} on 20 GB/s links with this NCCL: the paper's NCCL moved "
            f"at most {c.INFINIBAND * c.NCCL_EFFICIENCY / c.GB * anybody / paper:.1f} GB/s here"
        )
    if paper > its_bytes:
        return f"All's bytes alone do not allow more than {its_bytes:.2f} with this NCCL"
    if study.average_speed_of_paper(op, PAPER) < paper:
        return (
            "All's bytes would allow it, but All's order does not: at 256 MiB only "
            f"{hidden:.0%} of the shorter direction are hidden behind the other direction"
        )
    return (
        f"this NCCL moves {c.INFINIBAND * c.NCCL_EFFICIENCY / c.GB:.0f} GB/s, the paper's moved "
        f"{_implied(op):.1f}, but {_implied('gather'):.1f} in gather, which makes the same "
        "transfers in the other direction"
    )


def variants() -> str:
    """Returns the section that compares All with Naive and Aggregate."""
    rows = []
    for op in model.OPS:
        naive = study.over_variant(op, "naive", PAPER)
        aggregate = study.over_variant(op, "aggregate", PAPER)
        rows.append(
            (
                op,
                _range(naive),
                f"{statistics.mean(naive):.2f}",
                _range(aggregate),
                f"{statistics.mean(aggregate):.2f}",
            )
        )
    low, high = c.PAPER_OVER_AGGREGATE
    below = [
        (op, size)
        for op in model.OPS
        for size, ratio in zip(
            study.PAPER_SIZES, study.over_variant(op, "aggregate", PAPER), strict=True
        )
        if ratio < low
    ]
    one = sum(study.over_aggregate(op, size, PAPER) < 1.005 for op, size in below)
    free = min(study.over_aggregate(op, size, PAPER, bytes_only=True) for op, size in below)
    setup = (c.COPY_PUT_SETUP + c.COPY_GET_SETUP) / c.US
    header = ("1 MiB to 4 GiB", "All over Naive", "mean", "All over Aggregate", "mean")
    return f"""### The paper's variants

{markdown(header, rows)}

The paper reports up to {c.PAPER_OVER_NAIVE[1]:g} over Naive and {low} to {high} over Aggregate. No
ratio here exceeds these figures, and all means lie inside the ranges. {len(below)} of the
{len(model.OPS) * len(study.PAPER_SIZES)} ratios over Aggregate are below {low}, all of them at
{bytes_text(max(size for _, size in below))} or less. The cause is the set-up of copies: each
additional chunk costs {setup:.0f} us for its two copies. Without set-ups, All would be at least
{free:.2f} times as fast as Aggregate in each of the {len(below)}. In {one} of them the ratio is
1.00: there one chunk is fastest, and All with one chunk is Aggregate. With the 4 to 8 chunks that
the paper calls best, these ratios would be lower. It is not known whether the paper's range is one
of sizes or of means."""


def _range(values: list[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}"


def growth() -> str:
    """Returns the section on how much longer calls take on 12 hosts than on 3 hosts."""
    rows = []
    for op in model.OPS:
        figures = [study.growth(op, size) for size in study.PAPER_SIZES]
        own = [study.growth(op, size, "ours") for size in study.PAPER_SIZES]
        low, high = c.PAPER_GROWTH.get(op, (0.0, 0.0))
        paper = "" if not high else (f"{low}" if low == high else f"{low}-{high}")
        rows.append((op, paper, figures_text(figures), figures_text(own)))
    header = (
        "time at 12 hosts over 3",
        "paper",
        "modeled All, 1 MiB ... 4 GiB",
        "modeled jax_cxl",
    )
    together = study.growth("broadcast", 256 * c.MIB, orders=("same",))
    low, high = c.PAPER_GROWTH["all_reduce"]
    inside = [s for s in study.PAPER_SIZES if low <= study.growth("all_reduce", s) <= high]
    parts = []
    for size in study.PAPER_SIZES:
        if size in inside:
            continue
        moving, rest, share = study.growth_of_parts("all_reduce", size)
        parts.append(
            f"At {size // c.MIB} MiB the time of the bytes alone would grow {moving:.2f} times. "
            f"The other {share:.0%} of the time at 3 hosts grow {rest:.2f} times."
        )
    explained = "\n".join(parts)
    return f"""### From 3 to 12 hosts, 6 cards

{markdown(header, rows)}

all_reduce is inside the paper's range from {min(inside) // c.MIB} MiB up. In smaller calls,
a part of the time at 3 hosts goes into the set-ups of copies, the reductions and the doorbells.
Twelve hosts hide this time behind each other's copies.
{explained}
It is not known for which sizes the paper gives its figure.

If all readers of All's broadcast followed the root together, the time would grow {together:.1f}
times."""
