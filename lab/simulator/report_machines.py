"""The sections of docs/performance.md on more hosts and cards, slots, flushes and cost."""

from lab.simulator import constants as c, model, nccl, study
from lab.simulator.tables import bytes_text, markdown, time_text

# The most ranks of a group: kMaxMembers in cc/engine/cuda/device_call.h.
_MAX_GROUP = 64


def scaling_bytes() -> str:
    """Returns the section on the bytes that plans move, from 2 to 1,024 hosts."""
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

The three figures of a cell are counted from the plans, for {study.MACHINE.cards} cards: the bytes
of the busiest rank over the least that a rank must move, all bytes over the least for all ranks,
and the bytes of the busiest card over the mean of the cards. Where all three are 1.00, plans grow
as `cc/simulator/bounds.h` does. (all_reduce and reduce cut a chunk into one segment for each rank,
and some ranks get one segment more.)

{markdown(header, rows)}"""


def scaling_time() -> str:
    """Returns the section on the time of calls with more hosts and cards."""
    size = 64 * c.MIB
    slots = study.MACHINE.geometry.num_slots
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

Each cell has three values: the modeled time, this time divided by the bound of links and cards,
and NCCL's time divided by the modeled time. One switch does not connect 1,024 hosts. The table
shows where a pool needs more cards: about one card for each host that shares it. A rank's ring
reaches {slots} cards at most, so that a broadcast does not profit from more. The CUDA engine's
groups have at most {_MAX_GROUP} members. The model assumes that larger groups would work in the
same way.

{markdown(header, rows)}

![modeled hosts](img/modeled-hosts.png)"""


def chunks() -> str:
    """Returns the section on the size of a slot."""
    rows = []
    slots = [64 * c.KIB << i for i in range(7)]
    for op in model.OPS:
        for size in (c.MIB, 256 * c.MIB):
            times = study.best_slot(op, size, study.MACHINE)
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

Short messages are cut into chunks of at least {bytes_text(study.MACHINE.geometry.min_chunk_bytes)},
whatever the size of a slot."""


def modes() -> str:
    """Returns the section on pools that need flushes."""
    setting = model.Setting(coherence="flush")
    sizes = (c.KIB, 64 * c.KIB, c.MIB, 64 * c.MIB)
    rows = [
        (
            op,
            *(
                f"{study.ours(op, s, setting) / study.ours(op, s, study.MACHINE):.1f}"
                for s in sizes
            ),
        )
        for op in model.OPS
    ]
    header = ("time of flush over uncached", *(bytes_text(s) for s in sizes))
    both = c.GPU_OUT + c.GPU_IN
    return f"""### Pools that need flushes

On a `flush` pool the GPU moves the data as on other pools. Its host passes the doorbells on, and
writes cache lines back and drops them in between
([decision 18](decisions/0018-gpus-without-coherence.md)). In the model, four threads for each GPU
write back {c.WRITE_BACK_RATE / c.GB:.0f} GB/s and drop {c.DROP_RATE / c.GB:.0f} GB/s while other
rounds are copied. Each rate was measured by itself, on a Xeon with ordinary memory as the pool.
The model has no flags between the data of these pools. The code has them in short calls, which are
therefore faster than here. All other figures on this page are without flushes.

{markdown(header, rows)}

From 1 MiB up, these ratios are lower than those of
[two H200s](cuda-performance.md#pools-without-hardware-coherence) with an emulated pool. There calls
in a `flush` pool took 1.1 times as long as in a `coherent` pool at 4 KiB, 1.2 to 1.7 times
at 1 MiB, 1.2 to 1.4 times at 16 MiB and 1.1 to 1.4 times at 256 MiB. The model leaves out three
things: the threads that flush also poll, they pass calls on one after another, and write-backs and
copies share the memory of the processor. Four threads for each GPU wrote back and dropped 48 to
55 GB/s together on two H100s, beside copies of 256 MiB in both directions. The modeled links carry
{both / c.GB:.0f} GB/s, both directions together, so these threads would not be their limit."""


def cost() -> str:
    """Returns the section on the speed for each dollar."""
    share = c.INFINIBAND_SWITCH_DOLLARS / c.CXL_SWITCH_DOLLARS
    rows = []
    for op in model.OPS:
        speed = study.average_speed(op, study.MACHINE)
        rows.append((op, f"{speed:.2f}", f"{speed * share:.1f}"))
    header = ("3 hosts, 1 MiB to 4 GiB", "speed over InfiniBand", "speed per dollar of the switch")
    return f"""### Cost

A CXL switch costs {c.CXL_SWITCH_DOLLARS:,} $ and the InfiniBand switch
{c.INFINIBAND_SWITCH_DOLLARS:,} $, {share:.2f} times as much. These are the prices of the
[paper](#the-library-of-the-paper), without cards and adapters.

{markdown(header, rows)}"""
