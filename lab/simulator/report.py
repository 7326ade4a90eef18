"""The tables of the study in docs/performance.md."""

import statistics
from collections.abc import Callable

from lab.simulator import constants as c, model, nccl, study
from lab.simulator.tables import Row, bytes_text, time_text

Table = list[Row]

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


def tables() -> dict[str, list[list[str]]]:
    """Returns all tables by their names. The page has a mark with the name of each."""
    makers: dict[str, Callable[[], Table]] = {
        "infiniband": infiniband,
        "efficiencies": _efficiencies,
        "causes": _causes,
        "scaling_bytes": _scaling_bytes,
        "scaling_time": _scaling_time,
        "eight_gpus": eight_gpus,
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


def eight_gpus(numbers: tuple[int, ...] = (2, 8, 32)) -> Table:
    """Returns times of hosts of eight GPUs, each of which is a rank of the pool."""
    size = 64 * c.MIB
    rows = []
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for hosts in numbers:
            times = []
            for links, cards in ((1, 2), (8, 8)):
                # `even` models one card that is as fast as all cards together, so the study takes
                # less time. The modeled times stay the same, because plans load all cards equally.
                setting = model.Setting(
                    hosts=hosts,
                    cards=cards * hosts,
                    gpus_per_host=8,
                    links_per_host=links,
                    even=True,
                )
                times.append(study.ours(op, size, setting))
            times += (
                nccl.seconds(
                    op, size, hosts, c.NCCL_TUNED_EFFICIENCY, gpus_per_host=8, adapters=adapters
                )
                for adapters in (1, 8)
            )
            rows.append((op if hosts == numbers[0] else "", hosts, *map(time_text, times)))
    header = (
        f"{bytes_text(size)}, hosts of eight GPUs",
        *("hosts", "1 link", "8 links", "NCCL, 1 adapter", "NCCL, 8 adapters"),
    )
    return [header, *rows]
