"""The sections of docs/performance.md on more hosts and cards, slots, flushes and cost."""

from jax_cxl._simulate import constants as c
from jax_cxl._simulate import model, nccl, study
from jax_cxl._simulate.report_paper import PAPER
from jax_cxl._simulate.tables import bytes_text, markdown, time_text

# cc/engine/cuda/device_call.h: kMaxMembers.
_MAX_GROUP = 64


def scaling_bytes() -> str:
    """Bytes from 2 to 1,024 hosts."""
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

Counted from the plans, {PAPER.cards} cards: bytes of the busiest rank over the least that a rank
must move, all bytes over the least for all ranks, and the busiest card over the mean of the cards.
A 1.00 means that plans grow as `cc/plan/bounds.h` does. (all_reduce and reduce cut chunks into a
segment a rank: some ranks get one more.)

{markdown(header, rows)}"""


def scaling_time() -> str:
    """Time for more hosts and cards."""
    size = 64 * c.MIB
    slots = PAPER.geometry.num_slots
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
shares it. A rank's ring reaches {slots} cards at most, so that a broadcast does not profit from
more. The CUDA engine's groups have at most {_MAX_GROUP}
members; the model goes on as if larger ones did the same.

{markdown(header, rows)}

![modelled hosts](img/modelled-hosts.png)"""


def chunks() -> str:
    """Sizes of a slot."""
    rows = []
    slots = [64 * c.KIB << i for i in range(7)]
    for op in model.OPS:
        for size in (c.MIB, 256 * c.MIB):
            times = study.best_slot(op, size, PAPER)
            rows.append(
                (
                    op if size == c.MIB else "",
                    bytes_text(size),
                    *(f"{times[slot]:.2f}" for slot in slots),
                )
            )
    header = ("time over that of 2 MiB", "message", *(bytes_text(slot) for slot in slots))
    return f"""### Size of a slot, 3 hosts

{markdown(header, rows)}

Short messages are cut into chunks of at least {bytes_text(PAPER.geometry.min_chunk_bytes)} whatever
the slot."""


def modes() -> str:
    """Pools that need flushes."""
    setting = model.Setting(coherence="flush")
    sizes = (c.KIB, 64 * c.KIB, c.MIB, 64 * c.MIB)
    rows = [
        (
            op,
            *(f"{study.ours(op, s, setting) / study.ours(op, s, PAPER):.1f}" for s in sizes),
        )
        for op in model.OPS
    ]
    header = ("time of flush over uncached", *(bytes_text(s) for s in sizes))
    both = c.GPU_OUT + c.GPU_IN
    return f"""### Pools that need flushes

On a `flush` pool the GPU moves the data as elsewhere. Its host passes the doorbells on, and writes
back and drops cache lines in between ([decision 18](decisions/0018-gpus-without-coherence.md)).
While other rounds are copied, {c.WRITE_BACK_RATE / c.GB:.0f} GB/s are written back here and
{c.DROP_RATE / c.GB:.0f} GB/s dropped by four threads a GPU, as measured by themselves on a Xeon
with memory for the pool. There are no flags between the data. The paper's figures, and all the
others here, are without flushes.

{markdown(header, rows)}

The model is ahead of what
[was measured](cuda-performance.md#pools-that-nobody-keeps-coherent) between two ranks that share
one H100 and its link: 1.5 to 2.9 times the time of `coherent` at 4 KiB, 1.4 to 3.4 at 1 MiB and 1.2
to 1.4 from 16 MiB on. It leaves out that the relay polls and works in the same threads and passes
calls on one after another, and that write-backs and copies share the processor's memory. The relay
of a rank wrote back and dropped 28 GB/s together there; the modelled links carry {both / c.GB:.0f}.
If 28 is the relay's limit, long calls that move as much in as out take
{both / (28 * c.GB):.1f} times as long as in an `uncached` pool."""


def cost() -> str:
    """Speed per dollar."""
    share = c.INFINIBAND_SWITCH_DOLLARS / c.CXL_SWITCH_DOLLARS
    rows = []
    for op in model.OPS:
        speed = study.average_speed_of_ours(op, PAPER)
        rows.append((op, f"{speed:.2f}", f"{speed * share:.1f}"))
    header = ("3 hosts, 1 MiB to 4 GiB", "speed over InfiniBand", "speed per dollar of the switch")
    return f"""### Cost

A CXL switch costs {c.CXL_SWITCH_DOLLARS:,} $, the InfiniBand switch
{c.INFINIBAND_SWITCH_DOLLARS:,} $ ({share:.2f} times; the paper's prices, no cards or adapters).

{markdown(header, rows)}"""
