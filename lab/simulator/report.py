"""The tables of the study in docs/performance.md."""

import dataclasses
import statistics
from collections.abc import Callable

from lab.simulator import constants as c, levels, levels_study, model, nccl, study
from lab.simulator.tables import Row, bytes_text, time_text

Table = list[Row]

_HOSTS = (3, 6, 12)
_LEVELS_HOSTS = (2, 8, 32)
_WITH_NVLINK = [kind for kind in levels_study.KINDS if kind.inside == "nvlink"]
_INSIDE = {"nvlink": "NVLink", "pcie": "PCIe, peer to peer", "none": "the host's memory"}
_TABLE_SIZES = (
    c.KIB,
    16 * c.KIB,
    64 * c.KIB,
    c.MIB,
    16 * c.MIB,
    256 * c.MIB,
    4 * c.GIB,
)


def tables() -> dict[str, list[list[str]]]:
    """Returns all tables by their names. The page has a mark with the name of each."""
    makers: dict[str, Callable[[], Table]] = {
        "infiniband": infiniband,
        "efficiencies": _efficiencies,
        "causes": _causes,
        "scaling_bytes": _scaling_bytes,
        "scaling_time": _scaling_time,
        "levels_times": levels_times,
        "chunk_sizes": _chunk_sizes,
        "levels_bytes": _levels_bytes,
        "levels_pay": levels_pay,
        "flush": _flush,
        "cost": _cost,
    }
    return {name: [[str(cell) for cell in row] for row in make()] for name, make in makers.items()}


def infiniband() -> Table:
    """Returns the speed of jax_cxl relative to NCCL over InfiniBand."""
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
    return [header, *rows]


def _efficiencies() -> Table:
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
    return [header, *rows]


def _causes() -> Table:
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
    return [header, *rows]


def _scaling_bytes() -> Table:
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
    return [header, *rows]


def _scaling_time() -> Table:
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
    return [header, *rows]


def _flush() -> Table:
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
    return [header, *rows]


def _cost() -> Table:
    share = c.INFINIBAND_SWITCH_DOLLARS / c.CXL_SWITCH_DOLLARS
    rows = []
    for op in model.OPS:
        speed = study.average_speed(op, study.MACHINE)
        rows.append((op, f"{speed:.2f}", f"{speed * share:.1f}"))
    header = ("3 hosts, 1 MiB to 4 GiB", "speed over InfiniBand", "speed per dollar of the switch")
    return [header, *rows]


def levels_times(numbers: tuple[int, ...] = _LEVELS_HOSTS) -> Table:
    """Returns times of hosts of eight GPUs, flat and in levels."""
    rows = []
    for op in levels.OPS:
        for hosts in numbers:
            cells = []
            for kind in _WITH_NVLINK:
                setting = kind.setting(hosts)
                for call in (levels.flat_seconds, levels.seconds):
                    cells.append(time_text(call(op, levels_study.SIZE_OF_BYTES, setting)))
            for adapters in levels_study.ADAPTERS:
                cells.append(
                    time_text(
                        levels_study.nccl_seconds(op, levels_study.SIZE_OF_BYTES, hosts, adapters)
                    )
                )
            rows.append((op if hosts == numbers[0] else "", hosts, *cells))
    header = (
        f"{bytes_text(levels_study.SIZE_OF_BYTES)}, NVLink inside",
        "hosts",
        "1 link: flat",
        "levels",
        "8 links: flat",
        "levels",
        "NCCL, 1 adapter",
        "NCCL, 8 adapters",
    )
    return [header, *rows]


def _chunk_sizes() -> Table:
    few, many = levels_study.KINDS[0], levels_study.KINDS[len(c.INSIDE_RATES)]
    rows = []
    for op in levels.OPS:
        for kind, hosts in ((few, 2), (many, 2), (many, 8)):
            modeled = kind.setting(hosts)
            engine = dataclasses.replace(modeled, round_bytes=c.ENGINE_ROUND)
            cells = [
                ", ".join(
                    f"{levels_study.over_one_piece(op, setting, size):.2f}"
                    for setting in (modeled, engine)
                )
                for size in levels_study.CHUNK_SIZES
            ]
            rows.append((op if (kind, hosts) == (few, 2) else "", hosts, kind.links, *cells))
    header = (
        "time over that without chunks",
        "hosts",
        "links",
        *(bytes_text(size) for size in levels_study.CHUNK_SIZES),
    )
    return [header, *rows]


def _levels_bytes(numbers: tuple[int, ...] = _LEVELS_HOSTS) -> Table:
    rows = []
    for op in levels.OPS:
        for hosts in numbers:
            cells = []
            for kind in _WITH_NVLINK:
                found = levels_study.moved_bytes(op, kind.setting(hosts))
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
    return [header, *rows]


def _messages(bytes_: tuple[float, float]) -> str:
    return f"{sum(bytes_) / levels_study.SIZE_OF_BYTES:.3g}"


def levels_pay(numbers: tuple[int, ...] = _LEVELS_HOSTS) -> Table:
    """Returns the sizes at which levels are faster."""
    rows = []
    for op in levels.OPS:
        for kind in levels_study.KINDS:
            cells = [
                _runs(
                    levels.paying(op, kind.setting(n), levels_study.sizes(n)), levels_study.sizes(n)
                )
                for n in numbers
            ]
            name = f"{kind.links} link{'s' if kind.links > 1 else ''}, {_INSIDE[kind.inside]}"
            rows.append((op if kind == levels_study.KINDS[0] else "", name, *cells))
    header = ("levels are faster", "links, inside", *(f"{n} hosts" for n in numbers))
    return [header, *rows]


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
