"""The section of docs/performance.md on hosts with several GPUs."""

import dataclasses

from jax_cxl._lowering.levels import table
from lab.simulator import constants as c, levels, levels_study as study, model
from lab.simulator.tables import bytes_text, markdown, time_text

_INSIDE = {"nvlink": "NVLink", "pcie": "PCIe, peer to peer", "none": "the host's memory"}
_HOSTS = (2, 8, 32)


def levels_section(hosts: tuple[int, ...] = _HOSTS) -> str:
    """Returns the section, with tables for these numbers of hosts.

    The largest number takes most of the time.
    """
    few, many = study.KINDS[0], study.KINDS[len(c.INSIDE_RATES)]
    return f"""### Hosts of eight GPUs, flat and in levels

Flat: each of a host's eight GPUs is a rank of the pool. In levels: GPU g of each host is in group
g. All groups call through the pool at the same time, and JAX's own collectives (NCCL) work inside
the hosts.

| | inside a host, before | through the pool, for each group | inside a host, after |
| --- | --- | --- | --- |
| all_reduce (psum) | all_to_all, then additions | all_reduce of an eighth | all_gather |
| all_gather | | all_gather of an eighth | all_gather |
| reduce_scatter (psum_scatter) | all_to_all, then additions | reduce_scatter of an eighth | |
| all_to_all | all_to_all | all_to_all, a message for each pair of hosts and GPU | |

The stages through the pool are the plans of jax_cxl's planners, for all groups together, on the
model of links and cards. The stages inside a host follow NCCL's cost model, with rates that were
measured here between two or four GPUs (`INSIDE_RATES` in
`lab/simulator/constants.py`). Only the rates of peer-to-peer copies over PCIe were not
measured. Memory of a GPU moves data at its data sheet's rate: additions, copies that put blocks in
order, and copies that divide arrays into chunks and join chunks.

A call has as many chunks as jax_cxl makes (`jax_cxl/_lowering/levels/table.py`): up to
{table.MOST_CHUNKS}, each with at least {bytes_text(table.CHUNK_BYTES)} in the larger buffer of a
rank in the pool's stage. The stages run in the order that jax_cxl builds
([levels](levels.md#chunks-between-gpus)):
inside a host first the stages before the pool of all chunks, then the stages after it. Over NVLink
the pool moves chunks meanwhile. Otherwise the stages need the same PCIe port of a GPU, and nothing
overlaps.

There are two kinds of hosts. The first kind has {few.links} link and {few.cards} cards for each
host, which are as many cards as in the paper. The second kind has {many.links} links and
{many.cards} cards, one of each for each GPU. NCCL has one 200 Gb/s adapter for each host, or eight.
It reaches {c.NCCL_TUNED_EFFICIENCY:.0%} of their rate here, but {c.NCCL_EFFICIENCY:.0%} in the
tables above. That is an assumption in NCCL's favor.

[All rows](../benchmarks/results/{study.RESULTS}) are for 2 to 128 hosts,
1 KiB to 1 GiB (64 MiB for more than 8 hosts) and each kind of link inside;
`python -m lab.simulator --write-levels` writes them. `--gpus-per-host`, `--links-per-host`,
`--inside` and `--adapters` ask for another machine.
The CUDA engine's groups have at most 64 members. So beyond 8 hosts only levels exist, and the model
assumes that larger flat groups would work in the same way.

{_times(hosts)}

{_reading()}

{_chunk_sizes()}

{_bytes(hosts)}

{_pays(hosts)}"""


def _times(numbers: tuple[int, ...]) -> str:
    rows = []
    for op in levels.OPS:
        for hosts in numbers:
            cells = []
            for kind in study.KINDS:
                if kind.inside != "nvlink":
                    continue
                setting = kind.setting(hosts)
                for call in (levels.flat_seconds, levels.seconds):
                    cells.append(time_text(call(op, study.SIZE_OF_BYTES, setting)))
            for adapters in study.ADAPTERS:
                cells.append(
                    time_text(study.nccl_seconds(op, study.SIZE_OF_BYTES, hosts, adapters))
                )
            rows.append((op if hosts == numbers[0] else "", hosts, *cells))
    header = (
        f"{bytes_text(study.SIZE_OF_BYTES)}, NVLink inside",
        "hosts",
        "1 link: flat",
        "levels",
        "8 links: flat",
        "levels",
        "NCCL, 1 adapter",
        "NCCL, 8 adapters",
    )
    return markdown(header, rows)


def _reading() -> str:
    one, eight = study.KINDS[0].setting(8), study.KINDS[len(c.INSIDE_RATES)].setting(8)
    size = study.SIZE_OF_BYTES

    def gain(op: str, setting: model.Setting) -> str:
        ratio = levels.flat_seconds(op, size, setting) / levels.seconds(op, size, setting)
        return f"{ratio:.1f}"

    reductions = ("all_reduce", "all_gather", "reduce_scatter")
    one_gains, eight_gains = (
        ", ".join(gain(op, setting) for op in reductions) for setting in (one, eight)
    )
    exchange = f"{gain('all_to_all', one)} and {gain('all_to_all', eight)}"
    return f"""At 8 hosts levels are {one_gains} times as fast as flat for
{", ".join(reductions)} with one link, and {eight_gains} times with eight:
an eighth of the bytes goes through the pool. For all_to_all it is {exchange}: nearly
all of its bytes have to go through the pool. Levels save only those between GPUs of one host."""


def _chunk_sizes() -> str:
    few, many = study.KINDS[0], study.KINDS[len(c.INSIDE_RATES)]
    rows = []
    for op in levels.OPS:
        for kind, hosts in ((few, 2), (many, 2), (many, 8)):
            modeled = kind.setting(hosts)
            engine = dataclasses.replace(modeled, round_bytes=c.ENGINE_ROUND)
            cells = [
                ", ".join(
                    f"{study.over_one_piece(op, setting, size):.2f}"
                    for setting in (modeled, engine)
                )
                for size in study.CHUNK_SIZES
            ]
            rows.append((op if (kind, hosts) == (few, 2) else "", hosts, kind.links, *cells))
    header = (
        "time over that without chunks",
        "hosts",
        "links",
        *(bytes_text(size) for size in study.CHUNK_SIZES),
    )
    size = bytes_text(study.CHUNKED_BYTES)
    return f"""The next table is for calls of {size} in chunks of at least 1 to 16 MiB. jax_cxl
takes {bytes_text(table.CHUNK_BYTES)}. Each cell has two figures: with rounds in the pool as in all
other tables, and with rounds of at least {bytes_text(c.ENGINE_ROUND)}, as the CUDA engine makes
them in a pool of several devices. In the model a chunk enters the pool when the previous chunk has
left. In the engine they overlap
([laboratory](laboratory.md#between-copies-the-streams-themselves-wait-and-ring)), which favors
short chunks.

{markdown(header, rows)}"""


def _bytes(numbers: tuple[int, ...]) -> str:
    rows = []
    for op in levels.OPS:
        for hosts in numbers:
            cells = []
            for kind in study.KINDS:
                if kind.inside != "nvlink":
                    continue
                found = study.moved_bytes(op, kind.setting(hosts))
                for what in ("link", "card"):
                    cells.append(", ".join(_messages(getattr(found[way], what)) for way in found))
            rows.append((op if hosts == numbers[0] else "", hosts, *cells))
    header = (
        "flat, levels, least",
        "hosts",
        "1 link: a link",
        "a card",
        "8 links: a link",
        "a card",
    )
    return f"""The next table is for a call of {bytes_text(study.SIZE_OF_BYTES)}. It counts bytes
from the plans, as multiples of the size: bytes through the busiest link of a host, and bytes of the
busiest card, written and read together. Each cell has three figures: flat, in levels, and the
least. The least is for links and cards that share evenly, where each host is one rank
(`cc/simulator/bounds.h`).

{markdown(header, rows)}"""


def _messages(bytes_: tuple[float, float]) -> str:
    return f"{sum(bytes_) / study.SIZE_OF_BYTES:.3g}"


def _pays(numbers: tuple[int, ...]) -> str:
    rows = []
    for op in levels.OPS:
        for kind in study.KINDS:
            cells = [
                _runs(levels.paying(op, kind.setting(n), study.sizes(n)), study.sizes(n))
                for n in numbers
            ]
            name = f"{kind.links} link{'s' if kind.links > 1 else ''}, {_INSIDE[kind.inside]}"
            rows.append((op if kind == study.KINDS[0] else "", name, *cells))
    header = ("levels are faster", "links, inside", *(f"{n} hosts" for n in numbers))
    first, *_, last = study.sizes(numbers[0])
    sizes = f"{bytes_text(first)} to {bytes_text(last)}"
    return f"""The last table shows the sizes at which levels are faster, of sizes from {sizes}
(64 MiB for more than 8 hosts), each four times the previous size. Short calls are slower in levels,
because NCCL's calls inside the hosts cost time. For flat calls of many ranks
[the model is faster than the engine](#what-the-model-leaves-out), so levels may be faster at
smaller sizes too.

{markdown(header, rows)}"""


def _runs(runs: list[tuple[int, int]], sizes: tuple[int, ...]) -> str:
    first, last = sizes[0], sizes[-1]
    texts = []
    for low, high in runs:
        if (low, high) == (first, last):
            texts.append("all")
        elif high == last:
            texts.append(f"from {bytes_text(low)}")
        elif low == high:
            texts.append(bytes_text(low))
        else:
            texts.append(f"{bytes_text(low)} to {bytes_text(high)}")
    return ", ".join(texts) or "none"
