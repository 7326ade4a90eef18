"""Writes the Markdown of the study in docs/performance.md."""

from lab.simulator import (
    _simulator,
    constants as c,
    report_levels,
    report_machines,
    report_ours,
    study,
)
from lab.simulator.tables import bytes_text

BEGIN = "<!-- python -m lab.simulator --write docs: begin -->"
END = "<!-- python -m lab.simulator --write docs: end -->"


def insert(document: str, study_text: str) -> str:
    """Puts the study between its two marks in `document`, or at the end if there are no marks."""
    block = f"{BEGIN}\n{study_text.strip()}\n{END}\n"
    if BEGIN not in document:
        return document.rstrip() + "\n\n" + block
    head, _, rest = document.partition(BEGIN)
    return head + block + rest.partition(END)[2].lstrip("\n")


def study_sections() -> list[str]:
    return [
        _introduction(),
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
    geometry = study.MACHINE.geometry
    flagged = bytes_text(_simulator.FLAGGED_BYTES)
    return f"""## On CXL hardware: modeled

This page estimates how fast jax_cxl would be on CXL hardware. The project has no CXL switch, so
**every number on this page is modeled**. To ask about your machine:
`python -m lab.simulator --hosts 12 --cards 6 --op all_reduce --bytes 64MiB`.

A simulator runs the plans of jax_cxl's planners on a model of hosts, links and cards
(`cc/simulator`). `lab/simulator/constants.py` has the model's constants with their sources.
`python -m lab.simulator --write docs` writes this page again. As in nccl-tests, the size of a
call is the larger of its input and its output.

The simulator works event by event. A GPU copies to the pool and from the pool at the same time. The
copies of each direction run in order. Copies that run at the same time share links and cards
max-min fairly. A card has three rates: for reads, for writes, and for both together. A doorbell, a
fence, a poll, a kernel launch and the set-up of a copy each cost time.

A call of jax_cxl is one kernel, as on `coherent` and `uncached` pools. The modeled kernel does
what the kernel of the CUDA engine does, with some improvements that the engine does not have yet
([the last section](#what-the-model-leaves-out) lists the differences):

- In each round, the copies from all peers run side by side. Before them, the kernel waits for one
  poll and the latency of one read. That wait costs nothing if earlier copies take longer.
- A reduction reads the slots of all peers.
- The kernel rings each doorbell behind a fence, and continues to copy meanwhile.
- A call whose data are at most {flagged} on all ranks together has a flag in every other word. That
  doubles the bytes, but the call needs no fence, no doorbell and no poll, and readers follow
  writers by a few cache lines.

`cc/plan/gpu_geometry.cc` defines rings and limits: with {study.MACHINE.cards} cards a ring has
{geometry.num_slots} slots of {bytes_text(geometry.slot_bytes)}. Each thread block of the kernel
keeps its stripes of a round in another slot, so that a round of one rank lies on all cards
([laboratory](laboratory.md#a-kernels-round-lies-on-all-pool-devices)). A copy loads each card
with the bytes that lie on that card.

For NCCL the model is NCCL's own cost model with one efficiency, {c.NCCL_EFFICIENCY}, for all
operations. No source gives the efficiency on the machine of the CCCL paper. It was calibrated once,
on the only figure of the paper in which nothing but rates matters: above 256 MB its all-reduce is
1.05 times as fast as NCCL's. Nothing else is fitted.
[The library of the paper](#the-library-of-the-paper) was modeled too.

![modeled speed](img/modeled-speed.png)"""


def _limits() -> str:
    return """### What the model leaves out

The model simplifies the machine:

- The switch is never the bottleneck. Cards have no queues, no banks and no row conflicts.
- A poll costs its latency and its bytes, but slows no copy. That holds for repeated polls of flags
  too.
- Reads on a link pass the writes that are still on their way.
- Copies that share a resource share it evenly.
- A kernel keeps a link busy with any number of blocks, and all its blocks are at the same step.
- There are no copy engines: the kernel stands for them. The CUDA engine gives them its longest
  calls in a pool of one device, and long calls beside computation.
- NCCL has no start-up, no congestion and no adaptive routing.

The simulator runs long calls of many ranks for some rounds, and extends the time from there. The
result is within 5% of a run to the end, for reduce within 12% and for all_to_all within 20%. All
calls of up to 12 hosts and 256 MiB run to the end.

In one respect the model is faster than the CUDA engine, which matters for calls of many ranks.
Except in calls with flags, a warp of the engine reads from one peer after another, so each peer
costs the latency of a read. The limits of the engine also differ from those of the model. They were
measured on an emulated pool with links of 55 GB/s (`cc/gpu/cuda/channel/device_connection.h`):

| | engine | model |
| --- | --- | --- |
| flags in calls of at most | 256 KiB | 64 KiB |
| a round | 4 MiB for all members together | whole slots |
| a round in a pool of one device, at least | 512 KiB | 256 KiB |
| a round in a pool of several devices, at least | 1 MiB | 24 KiB |

With the engine's rounds, modeled calls between 3 hosts would take 1.1 to 2.0 times as long at
1 MiB, 1.1 to 1.2 times at 4 MiB, and 0.97 to 1.04 times from 16 MiB up. On real CXL the engine's
limits have to be measured again."""
