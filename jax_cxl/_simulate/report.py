"""The Markdown of the study in docs/performance.md."""

import statistics

from jax_cxl._simulate import constants as c
from jax_cxl._simulate import model, nccl, study
from jax_cxl._simulate.tables import bytes_text, markdown, time_text

BEGIN = "<!-- python -m jax_cxl simulate --write docs: begin -->"
END = "<!-- python -m jax_cxl simulate --write docs: end -->"

_PAPER = model.Setting()
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

# Why the model's average differs from the paper's, where it does by more than 15%.
_REASONS = {
    "broadcast": "the one NCCL rate is too high for it; the order of All's readers is not known",
    "gather": "the one NCCL rate is too high for it: All's root already reads at its link's rate",
    "scatter": "the one NCCL rate is too low for it: the paper's NCCL scatters twice as fast as it "
    "gathers, of which a symmetric network knows nothing",
    "all_reduce": "All reads 2 S, a ring moves 1.33 S; the paper has 1.05 above 256 MB and no "
    "reason why smaller messages should do better than that",
    "reduce_scatter": "rank r reads from r+1 first, which publishes r's block last: in the order "
    "that is known nothing overlaps at 3 hosts",
    "reduce": "All's root reads 2 S, a ring moves S: only a slow NCCL gives the paper's figure",
    "all_to_all": "as reduce_scatter",
}


def insert(document: str, study_text: str) -> str:
    """Replaces what stands between the marks in `document`, or appends it."""
    block = f"{BEGIN}\n{study_text.strip()}\n{END}\n"
    if BEGIN not in document:
        return document.rstrip() + "\n\n" + block
    head, _, rest = document.partition(BEGIN)
    return head + block + rest.partition(END)[2].lstrip("\n")


def study_sections() -> list[str]:
    return [
        _introduction(),
        _averages(),
        _variants(),
        _growth(),
        _ours(),
        _infiniband(),
        _causes(),
        _scaling_bytes(),
        _scaling_time(),
        _chunks(),
        _modes(),
        _cost(),
        _limits(),
    ]


def study_document() -> str:
    return "\n\n".join(study_sections())


def _range(values: list[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}"


def _introduction() -> str:
    return f"""## On CXL hardware: modelled

Nobody here has a CXL switch. **Every number in this part is modelled**: the planners' own plans run
on a model of hosts, links and cards (`cc/engine/sim`), whose constants stand with their sources in
`jax_cxl/_simulate/constants.py`. `python -m jax_cxl simulate --write docs` writes this part again;
`python -m jax_cxl simulate --hosts 12 --cards 6 --op all_reduce --bytes 64MiB` answers for another
machine. Sizes are nccl-tests': the larger of input and output.

The model is a discrete-event one. A GPU copies to the pool and from it at the same time, each
direction in order; copies share links and cards max-min fairly; a card has a rate for reads, one
for writes and one for both. A doorbell, a fence, a poll, a launch and a copy's set-up cost time.
For jax_cxl one kernel makes the call, as `coherent` and `uncached` pools allow: it copies from all
peers of a round at once, reduces straight from their slots, and up to {bytes_text(c.INLINE_BYTES)}
keeps data and flag in one line. The ring has {_PAPER.slots} slots of
{bytes_text(_PAPER.slot_bytes)} at {_PAPER.cards} cards. The paper's three variants are rebuilt in
`cc/engine/sim/paper.cc`; what is not known of All (number of chunks, order of a broadcast's
readers) is chosen at each size in its favour. NCCL is its own cost model with one efficiency,
{c.NCCL_EFFICIENCY}, for all operations. No source gives that of the paper's machine: it was
calibrated once, on the paper's one figure in which only rates matter (all-reduce above 256 MB,
1.05). Nothing else is fitted.

![modelled speed](img/modelled-speed.png)"""


def _implied(op: str) -> float:
    """The rate of NCCL, in GB/s, at which All would be as much faster as the paper says."""
    rate = c.INFINIBAND * c.NCCL_EFFICIENCY / c.GB
    return rate * study.average_speed_of_paper(op, _PAPER) / c.PAPER_AVERAGES[op]


def _averages() -> str:
    rows = []
    for op in model.OPS:
        paper, average = c.PAPER_AVERAGES[op], study.average_speed_of_paper(op, _PAPER)
        deviation = average / paper - 1
        rows.append(
            (
                op,
                f"{paper:.2f}",
                f"{average:.2f}",
                f"{deviation:+.0%}",
                f"{_implied(op):.1f}",
                f"{study.average_speed_of_ours(op, _PAPER):.2f}",
                _REASONS.get(op, "") if abs(deviation) > 0.15 else "",
            )
        )
    header = (
        "3 hosts, 6 cards",
        "paper's All",
        "modelled All",
        "deviation",
        "NCCL's GB/s that would explain it",
        "modelled jax_cxl",
        "why it deviates",
    )
    small = ", ".join(
        f"{op} {nccl.seconds(op, c.MIB, 3) / study.paper(op, c.MIB, _PAPER):.2f} "
        f"at 1 MiB and {nccl.seconds(op, 64 * c.KIB, 3) / study.paper(op, 64 * c.KIB, _PAPER):.2f} "
        f"at 64 KiB (paper {figure})"
        for op, figure in c.PAPER_SMALL.items()
    )
    implied = [_implied(op) for op in model.OPS]
    large = nccl.seconds("all_reduce", 4 * c.GIB, 3) / study.paper("all_reduce", 4 * c.GIB, _PAPER)
    return f"""### The paper's averages

Speed over NCCL on 200 Gb/s InfiniBand, mean over 1 MiB to 4 GiB.

{markdown(header, rows)}

The eight figures of the paper need NCCL rates from {min(implied):.0f} to {max(implied):.0f} GB/s on
one 25 GB/s network; a model with one rate cannot give them all, and one with eight would have been
fitted. Small messages lose as in the paper: {small}. Large all-reduce is near parity: {large:.2f}
(paper {c.PAPER_LARGE_ALL_REDUCE}; this is the calibrated one)."""


def _variants() -> str:
    rows = []
    for op in model.OPS:
        naive = study.over_variant(op, "naive", _PAPER)
        aggregate = study.over_variant(op, "aggregate", _PAPER)
        rows.append(
            (
                op,
                _range(naive),
                f"{statistics.mean(naive):.2f}",
                _range(aggregate),
                f"{statistics.mean(aggregate):.2f}",
            )
        )
    header = ("1 MiB to 4 GiB", "All over Naive", "mean", "All over Aggregate", "mean")
    low, high = c.PAPER_OVER_AGGREGATE
    return f"""### The paper's variants

{markdown(header, rows)}

The paper reports up to {c.PAPER_OVER_NAIVE[1]:g} over Naive and {low} to {high} over Aggregate.
Nothing here exceeds that, and all means lie inside. Below {low} lie single sizes: small messages,
for which the model grants All one chunk, which makes it Aggregate, and reduce_scatter and
all_to_all, whose order overlaps little at 3 hosts. Whether the paper's range is one of
sizes or of means is not known."""


def _growth() -> str:
    rows = []
    for op in model.OPS:
        figures = [study.growth(op, size) for size in study.PAPER_SIZES]
        own = [study.growth(op, size, "ours") for size in study.PAPER_SIZES]
        low, high = c.PAPER_GROWTH.get(op, (0.0, 0.0))
        paper = "" if not high else (f"{low}" if low == high else f"{low}-{high}")
        rows.append((op, paper, figures_text(figures), figures_text(own)))
    header = ("12 hosts over 3", "paper", "modelled All, 1 MiB ... 4 GiB", "modelled jax_cxl")
    together = study.growth("broadcast", 256 * c.MIB, orders=("same",))
    low, high = c.PAPER_GROWTH["all_reduce"]
    inside = [s for s in study.PAPER_SIZES if low <= study.growth("all_reduce", s) <= high]
    parts = []
    for size in study.PAPER_SIZES:
        if size in inside:
            continue
        moving, rest, share = study.growth_of_parts("all_reduce", size)
        parts.append(
            f"At {size // c.MIB} MiB the bytes alone would grow {moving:.2f} times; the other "
            f"{share:.0%} of the time at 3 hosts grow {rest:.2f} times."
        )
    explained = "\n".join(parts)
    return f"""### From 3 to 12 hosts, 6 cards

{markdown(header, rows)}

all_reduce is inside the paper's range from {min(inside) // c.MIB} MiB on. Below, set-ups of
copies and reductions and doorbells count, which twelve hosts hide behind each other's copies:
{explained}
The sizes of the paper's figure are not known.

If the readers of All's broadcast all followed the root together, they would grow {together:.1f}
times."""


def figures_text(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _ours() -> str:
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
    return f"### jax_cxl against the paper's All, 6 cards\n\n{markdown(header, rows)}"


def _infiniband() -> str:
    rows = []
    for op in model.OPS:
        for hosts in _HOSTS:
            setting = model.Setting(hosts=hosts)
            cells = []
            for size in _TABLE_SIZES:
                baseline = nccl.seconds(op, size, hosts)
                ratio = baseline / study.ours(op, size, setting)
                forbidden = model.bound_seconds(op, size, setting) >= baseline
                cells.append(f"{ratio:.2f}" + ("†" if ratio < 1 and forbidden else ""))
            rows.append((op if hosts == _HOSTS[0] else "", hosts, *cells))
    header = ("jax_cxl over NCCL", "hosts", *(bytes_text(s) for s in _TABLE_SIZES))
    losses = [
        f"{op} of {bytes_text(size)} at {hosts} hosts {ratio:.2f}"
        for op in model.OPS
        for hosts in _HOSTS
        for size, (ratio, forbidden) in zip(
            study.ALL_SIZES,
            study.over_infiniband(op, model.Setting(hosts=hosts)),
            strict=True,
        )
        if ratio < 1 and not forbidden
    ]
    rows_efficiency = []
    for efficiency in (c.NCCL_EFFICIENCY, 0.7, 0.9):
        cells = []
        for op in model.OPS:
            values = [
                nccl.seconds(op, s, 3, efficiency) / study.ours(op, s, _PAPER)
                for s in study.PAPER_SIZES
            ]
            cells.append(f"{statistics.mean(values):.2f}")
        rows_efficiency.append((f"{efficiency}", *cells))
    efficiency_header = ("efficiency of NCCL", *model.OPS)
    return f"""### jax_cxl against NCCL on InfiniBand, 6 cards

† forbidden: the bytes that the operation must move (`cc/plan/bounds.h`) take longer over the GPUs'
links or the cards than InfiniBand takes. Twelve hosts share six cards, but have twelve adapters.

{markdown(header, rows)}

Losses that no bound explains: {"; ".join(losses) or "none"}.

The one calibrated constant matters here. Mean over 1 MiB to 4 GiB at 3 hosts:

{markdown(efficiency_header, rows_efficiency)}

With a well-tuned NCCL a pool at 20 GB/s a GPU is behind a 25 GB/s network for large messages."""


def _causes() -> str:
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


def _scaling_bytes() -> str:
    ranks = (2, 3, 12, 64, 256, 1024)
    rows = []
    for op in study.PLANNED:
        if op == "barrier":
            continue
        cells = []
        for n in ranks:
            per_rank, total, per_card = study.scaling(op, n, 6)
            cells.append(f"{per_rank:.2f} {total:.2f} {per_card:.2f}")
        rows.append((op, *cells))
    header = ("plans over the bound", *(f"{n} hosts" for n in ranks))
    return f"""### Bytes from 2 to 1,024 hosts

Counted from the plans, {_PAPER.cards} cards: bytes of the busiest rank over the least that a rank
must move, all bytes over the least for all ranks, and the busiest card over the mean of the cards.
A 1.00 means that plans grow as `cc/plan/bounds.h` does. (all_reduce and reduce cut chunks into a
segment a rank: some ranks get one more.)

{markdown(header, rows)}"""


def _scaling_time() -> str:
    size = 64 * c.MIB
    cards = (1, 6, 16, 64)
    rows = []
    for op in ("all_gather", "all_reduce", "reduce_scatter", "broadcast"):
        for count in cards:
            cells = []
            for n in (2, 12, 64, 256, 1024):
                if op == "reduce_scatter" and n > 256:
                    cells.append("-")
                    continue
                setting = model.Setting(hosts=n, cards=count)
                mine = study.ours(op, size, setting)
                bound = model.bound_seconds(op, size, setting)
                ratio = nccl.seconds(op, size, n) / mine
                cells.append(f"{time_text(mine)}, {mine / bound:.2f}, {ratio:.2f}")
            rows.append((op if count == cards[0] else "", count, *cells))
    header = ("64 MiB", "cards", *(f"{n} hosts" for n in (2, 12, 64, 256, 1024)))
    return f"""### Time from 2 to 1,024 hosts and 1 to 64 cards

Modelled time, that over the bound of links and cards, and NCCL's over it. One switch does not
connect 1,024 hosts; the table shows where a pool needs more cards: about one for each host that
shares it. broadcast reads from one ring, hence from half of its {c.MAX_SLOTS} slots at a time: it
does not profit from more than {c.MAX_SLOTS // 2} cards. all_reduce and reduce have inputs and
results on every other card where the ranks' first cards are an even number apart, as at 3 hosts.

{markdown(header, rows)}

![modelled hosts](img/modelled-hosts.png)"""


def _chunks() -> str:
    rows = []
    slots = [64 * c.KIB << i for i in range(7)]
    for op in model.OPS:
        for size in (c.MIB, 256 * c.MIB):
            times = study.best_slot(op, size, _PAPER)
            rows.append(
                (
                    op if size == c.MIB else "",
                    bytes_text(size),
                    *(f"{times[slot]:.2f}" for slot in slots),
                )
            )
    header = ("time over that of 1 MiB", "message", *(bytes_text(slot) for slot in slots))
    return f"""### Size of a slot, 3 hosts

{markdown(header, rows)}

Short messages are cut into chunks of at least {bytes_text(c.MIN_CHUNK_BYTES)} whatever the slot."""


def _modes() -> str:
    setting = model.Setting(coherence="flush")
    sizes = (c.KIB, 64 * c.KIB, c.MIB, 64 * c.MIB)
    rows = [
        (
            op,
            *(f"{study.ours(op, s, setting) / study.ours(op, s, _PAPER):.1f}" for s in sizes),
        )
        for op in model.OPS
    ]
    header = ("time of flush over uncached", *(bytes_text(s) for s in sizes))
    return f"""### Pools that need flushes

On a `flush` pool the host flushes what was copied, at the rates that Beluga measured on one core
({c.FLUSH_PUT_RATE / c.GB:.1f} GB/s after a write, {c.FLUSH_GET_RATE / c.GB:.1f} before a read), and
rings the doorbells. The paper's figures, and all the others here, are without.

{markdown(header, rows)}"""


def _cost() -> str:
    share = c.INFINIBAND_SWITCH_DOLLARS / c.CXL_SWITCH_DOLLARS
    rows = []
    for op in model.OPS:
        speed = study.average_speed_of_ours(op, _PAPER)
        rows.append((op, f"{speed:.2f}", f"{speed * share:.1f}"))
    header = ("3 hosts, 1 MiB to 4 GiB", "speed over InfiniBand", "speed per dollar of the switch")
    return f"""### Cost

A CXL switch costs {c.CXL_SWITCH_DOLLARS:,} $, the InfiniBand switch
{c.INFINIBAND_SWITCH_DOLLARS:,} $ ({share:.2f} times; the paper's prices, no cards or adapters).

{markdown(header, rows)}"""


def _limits() -> str:
    return """### What the model leaves out

The switch never is the bottleneck; cards have no queues, banks or row conflicts; polling costs its
latency and its bytes but slows no copy; copies that share a resource share it evenly; a kernel
keeps a link busy whatever its block count. NCCL has no start-up, no congestion and no adaptive
routing. Long calls of many ranks are run for some rounds and extended from there (within 5% of
running them to the end; everything up to 12 hosts and 256 MiB runs to the end). The paper's
variants follow published descriptions, not its source."""
