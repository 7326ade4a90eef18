"""The Markdown of the study in docs/performance.md."""

from jax_cxl import _simulator
from jax_cxl._simulate import constants as c
from jax_cxl._simulate import report_levels, report_machines, report_ours, report_paper
from jax_cxl._simulate.report_paper import PAPER
from jax_cxl._simulate.tables import bytes_text

BEGIN = "<!-- python -m jax_cxl simulate --write docs: begin -->"
END = "<!-- python -m jax_cxl simulate --write docs: end -->"


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
        report_paper.averages(),
        report_paper.variants(),
        report_paper.growth(),
        report_ours.ours(),
        report_ours.infiniband(),
        report_ours.causes(),
        report_machines.scaling_bytes(),
        report_machines.scaling_time(),
        report_levels.levels_section(),
        report_machines.chunks(),
        report_machines.modes(),
        report_machines.cost(),
        _limits(),
    ]


def study_document() -> str:
    return "\n\n".join(study_sections())


def _introduction() -> str:
    geometry = PAPER.geometry
    flagged = bytes_text(_simulator.FLAGGED_BYTES)
    return f"""## On CXL hardware: modelled

Nobody here has a CXL switch. **Every number in this part is modelled**: the planners' own plans run
on a model of hosts, links and cards (`cc/engine/sim`), whose constants stand with their sources in
`jax_cxl/_simulate/constants.py`. `python -m jax_cxl simulate --write docs` writes this part again;
`python -m jax_cxl simulate --hosts 12 --cards 6 --op all_reduce --bytes 64MiB` answers for another
machine. Sizes are nccl-tests': the larger of input and output.

The model is a discrete-event one. A GPU copies to the pool and from it at the same time, each
direction in order; copies share links and cards max-min fairly; a card has a rate for reads, one
for writes and one for both. A doorbell, a fence, a poll, a launch and a copy's set-up cost time.
For jax_cxl one kernel makes the call, as `coherent` and `uncached` pools allow, and does what the
CUDA engine's does or is to do (the end of this part names the differences): the copies of a round
from all peers are side by side, behind one poll and a read's latency unless the copies before take
longer; reductions read all peers' slots; each doorbell is rung behind a fence while the copies go
on. Calls whose data are at most
{flagged} on all ranks together have a flag in every other word: twice the
bytes, but no fence, no doorbell and no poll, and readers follow writers by a few lines. Rings and
limits stand in `cc/plan/gpu_geometry.cc`: {geometry.num_slots} slots of
{bytes_text(geometry.slot_bytes)} at {PAPER.cards} cards. Each thread block of the kernel keeps its
stripes of a round in another slot, so that a round of one rank lies on all cards
([decision 12](decisions/0012-striped-rounds.md)); a copy loads each card by what it has of it.

The paper's three variants are rebuilt in `cc/engine/sim/paper.cc`; what is not known of All (number
of chunks, order of a broadcast's readers) is chosen at each size in its favour. NCCL is its own
cost model with one efficiency, {c.NCCL_EFFICIENCY}, for all operations. No source gives that of the
paper's machine: it was calibrated once, on the paper's one figure in which only rates matter
(all-reduce above 256 MB, 1.05). Nothing else is fitted.

![modelled speed](img/modelled-speed.png)"""


def _limits() -> str:
    return """### What the model leaves out

The switch never is the bottleneck; cards have no queues, banks or row conflicts; polling costs its
latency and its bytes but slows no copy, not even that of flags over and over; a link lets reads
pass the writes that are still on their way; copies that share a resource share it evenly; a kernel
keeps a link busy whatever its block count, and its blocks are all at the same step. Copy engines,
to which the CUDA engine leaves the longest calls in a pool of one device, and long ones beside
compute, are not modelled: the kernel stands for them. NCCL has no start-up, no congestion and no
adaptive routing. Long calls of many ranks are run for some rounds and extended from there (within
5% of running them to the end, reduce within 12%, all_to_all within 20%; everything up to 12 hosts
and 256 MiB runs to the end). The paper's variants follow published descriptions, not its source.

The model is ahead of the CUDA engine in one thing, which matters to calls of many ranks: outside
the calls with flags a warp of the engine reads from one peer after another, so that each peer costs
a read's latency. The engine's own limits were measured on an emulated pool and links of 55 GB/s:
flags up to 256 KiB; 4 MiB of a round for all members together; rounds of at least 512 KiB in a pool
of one device, and of 1 MiB in a pool of several (`cc/comm/cuda/device_connection.h`). The model has
flags up to 64 KiB, whole slots, and rounds of at least 24 KiB in pools of several devices. With the
engine's rounds, calls of 1 MiB between 3 hosts would take 1.1 to 2.0 times as long here, those of
4 MiB 1.1 to 1.2 times, and those of 16 MiB and more 0.97 to 1.04 times. On real CXL the engine's
limits are to be measured again."""
