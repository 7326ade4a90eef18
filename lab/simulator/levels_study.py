"""Models hosts with eight GPUs, flat and in levels, for the study in docs/performance.md."""

import dataclasses
import pathlib

from jax_cxl._commands.measuring import report as bench_report, results_file
from lab.simulator import constants as c, levels, model, nccl

GPUS = 8
HOSTS = (2, 4, 8, 16, 32, 64, 128)
# The numbers of hosts for which bytes are counted. More hosts would take minutes for each row.
HOSTS_COUNTED = (2, 4, 8, 16, 32)
SIZE_OF_BYTES = 64 * c.MIB
_SIZES = tuple(c.KIB << i for i in range(0, 21, 2))
ADAPTERS = (1, 8)
# The sizes of a chunk that the study compares, for a call of CHUNKED_BYTES.
CHUNK_SIZES = tuple(c.MIB << i for i in range(5))
CHUNKED_BYTES = 128 * c.MIB
RESULTS = "levels/simulate-levels-2026-11-25.json"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of host.

    Attributes:
      links: number of links from a host to the pool.
      cards: number of cards in the pool for each host.
      inside: what joins the GPUs of a host (see model.Setting).
    """

    links: int
    cards: int
    inside: str

    def setting(self, hosts: int) -> model.Setting:
        # `even` models one card that is as fast as all cards together, so the study takes less
        # time. The modeled times stay the same, because plans load all cards equally (the bytes of
        # the busiest card are counted separately).
        return model.Setting(
            hosts=hosts,
            gpus_per_host=GPUS,
            links_per_host=self.links,
            inside=self.inside,
            cards=self.cards * hosts,
            even=True,
        )


def sizes(hosts: int) -> tuple[int, ...]:
    """Returns the sizes of the study. Longer calls of many hosts would take minutes each."""
    return _SIZES if hosts <= 8 else tuple(size for size in _SIZES if size <= SIZE_OF_BYTES)


# Kinds of hosts: either one link and two cards for each host, as in the paper's setting, or one
# link and one card for each GPU.
KINDS = tuple(
    Kind(links, cards, inside) for links, cards in ((1, 2), (8, 8)) for inside in c.INSIDE_RATES
)


def over_one_piece(op: str, setting: model.Setting, chunk_bytes: int) -> float:
    """Returns the time of a call of CHUNKED_BYTES in chunks, relative to its time in one piece."""
    in_chunks, whole = (
        levels.seconds(op, CHUNKED_BYTES, setting, size) for size in (chunk_bytes, CHUNKED_BYTES)
    )
    return in_chunks / whole


def nccl_seconds(op: str, size: int, hosts: int, adapters: int) -> float:
    return nccl.seconds(
        op, size, hosts, c.NCCL_TUNED_EFFICIENCY, gpus_per_host=GPUS, adapters=adapters
    )


def write(path: pathlib.Path) -> None:
    """Models all rows of the study, and writes them as a results file."""
    rows, moved = [], []
    for op in levels.OPS:
        for hosts in HOSTS:
            for kind in KINDS:
                rows.append(_row(op, hosts, kind))
                if kind.inside == "nvlink" and hosts in HOSTS_COUNTED:
                    moved.append(_moved(op, hosts, kind))
    results_file.write(
        path,
        {
            "modeled": True,
            "command": results_file.command_line(
                "python -m lab.simulator", ["--write-levels", str(path)]
            ),
            "versions": {"jax_cxl": bench_report.versions()["jax_cxl"]},
            "gpus_per_host": GPUS,
            "nccl_efficiency": c.NCCL_TUNED_EFFICIENCY,
            "bytes": moved,
            "results": rows,
        },
    )


def _row(op: str, hosts: int, kind: Kind) -> dict[str, object]:
    """Returns a row: times for each size, and the ranges of sizes in which levels beat flat."""
    setting, all_sizes = kind.setting(hosts), sizes(hosts)
    row: dict[str, object] = {"op": op, "hosts": hosts, **_of(kind), "bytes": list(all_sizes)}
    row["flat_us"] = [_us(levels.flat_seconds(op, size, setting)) for size in all_sizes]
    row["levels_us"] = [_us(levels.seconds(op, size, setting)) for size in all_sizes]
    for adapters in ADAPTERS:
        row[f"nccl_{adapters}_us"] = [
            _us(nccl_seconds(op, size, hosts, adapters)) for size in all_sizes
        ]
    row["levels_pay"] = [list(run) for run in levels.paying(op, setting, all_sizes)]
    return row


def _moved(op: str, hosts: int, kind: Kind) -> dict[str, object]:
    row: dict[str, object] = {"op": op, "bytes": SIZE_OF_BYTES, "hosts": hosts, **_of(kind)}
    for name, found in moved_bytes(op, kind.setting(hosts)).items():
        row[name] = {"link": [round(b) for b in found.link], "card": [round(b) for b in found.card]}
    return row


def moved_bytes(op: str, setting: model.Setting) -> dict[str, levels.LinkBytes]:
    """Returns the bytes that a call of SIZE_OF_BYTES moves: flat, in levels, and the minimum."""
    return {
        "flat": levels.counted_bytes(op, SIZE_OF_BYTES, setting, flat=True),
        "levels": levels.counted_bytes(op, SIZE_OF_BYTES, setting, flat=False),
        "least": levels.least_bytes(op, SIZE_OF_BYTES, setting),
    }


def _of(kind: Kind) -> dict[str, object]:
    return {"links": kind.links, "cards_per_host": kind.cards, "inside": kind.inside}


def _us(seconds: float) -> float:
    return float(f"{seconds / c.US:.4g}")
