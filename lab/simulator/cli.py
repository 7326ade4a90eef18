"""`python -m lab.simulator`: models one call on a machine that you describe.

With `--write` it writes the tables and the pictures of docs/performance.md instead.
"""

import argparse
import importlib.util
import json
import pathlib
import sys

from jax_cxl import _sizes
from jax_cxl._commands import option_types
from jax_cxl._commands.measuring import results_file
from lab.simulator import constants as c, model, nccl, tables

_DEFAULT_SIZES = (c.KIB, 64 * c.KIB, c.MIB, 16 * c.MIB, 256 * c.MIB, 4 * c.GIB)


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 <= rate < float("inf"):
        raise ValueError(f"{text} must be finite and not negative")
    return rate


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.simulator",
        description="Models the times of collectives by jax_cxl, and by NCCL over InfiniBand. The"
        " model has hosts, links and pool devices.",
    )
    parser.add_argument(
        "--hosts",
        type=option_types.whole_number(1),
        default=c.HOSTS,
        help="number of hosts (default: %(default)s)",
    )
    parser.add_argument(
        "--gpus-per-host",
        type=option_types.whole_number(1),
        default=1,
        help="GPUs of a host, which NVLink joins for NCCL (default: 1)",
    )
    parser.add_argument(
        "--links-per-host",
        type=option_types.whole_number(1),
        default=1,
        help="links of a host to the pool, which its GPUs share (default: 1)",
    )
    parser.add_argument(
        "--adapters",
        type=option_types.whole_number(1),
        default=1,
        help="InfiniBand adapters of a host, 200 Gb/s each",
    )
    parser.add_argument(
        "--cards", type=option_types.whole_number(1), default=c.CARDS, help="devices of the pool"
    )
    parser.add_argument(
        "--op",
        choices=(*model.OPS, "barrier", "permute", "scan", "exscan"),
        help="the collective (default: all but the last four)",
    )
    parser.add_argument(
        "--bytes",
        type=option_types.telling(_sizes.parse),
        help="size of a call as nccl-tests counts it, such as 64KiB (default: several sizes)",
    )
    parser.add_argument(
        "--slot-bytes",
        type=option_types.telling(_sizes.parse),
        default=0,
        help="size of a slot (default: 2MiB)",
    )
    parser.add_argument(
        "--coherence", choices=("coherent", "uncached", "flush"), default="uncached"
    )
    for direction in ("write", "read"):
        parser.add_argument(
            f"--tier-{direction}",
            metavar="GB/S",
            type=option_types.telling(_rate),
            default=0.0,
            help=f"GB/s that each GPU {direction}s meanwhile in a store in the same pool, such as"
            " offloaded activations (default: 0)",
        )
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    parser.add_argument(
        "--write",
        metavar="DOCS",
        type=option_types.folder,
        help="write the study into DOCS/data/model.json and DOCS/img and exit",
    )
    return parser


def main(argv: list[str]) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.write is not None:
        if importlib.util.find_spec("matplotlib") is None:
            parser.error("--write needs matplotlib: pip install 'jax_cxl[examples]'")
        return _write(arguments.write)
    setting = model.Setting(
        hosts=arguments.hosts,
        cards=arguments.cards,
        gpus_per_host=arguments.gpus_per_host,
        links_per_host=arguments.links_per_host,
        coherence=arguments.coherence,
        slot_bytes=arguments.slot_bytes,
        tier_write=arguments.tier_write * c.GB,
        tier_read=arguments.tier_read * c.GB,
    )
    try:
        model.machine(setting)
    except ValueError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    try:
        rows = [
            _row(op, size, setting, arguments.adapters)
            for op in ([arguments.op] if arguments.op else model.OPS)
            for size in ([arguments.bytes] if arguments.bytes is not None else _DEFAULT_SIZES)
        ]
    except ValueError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    print(
        f"modeled: {setting.hosts} hosts of {setting.gpus_per_host} GPUs and "
        f"{setting.links_per_host} links, {setting.cards} cards, "
        f"{setting.geometry.num_slots} slots of "
        f"{tables.bytes_text(setting.geometry.slot_bytes)} a rank"
    )
    header = ("op", "size", "jax_cxl", "bound", "InfiniBand", "busiest", "busy")
    print(tables.plain(header, [_cells(row) for row in rows]))
    return 0


def _row(op: str, size: int, setting: model.Setting, adapters: int) -> dict[str, object]:
    ours = model.ours(op, size, setting)
    row: dict[str, object] = {
        "modeled": True,
        "op": op,
        "bytes": size,
        "hosts": setting.hosts,
        "gpus_per_host": setting.gpus_per_host,
        "links_per_host": setting.links_per_host,
        "cards": setting.cards,
        "slot_bytes": setting.geometry.slot_bytes,
        "seconds": ours.seconds,
        "bound_seconds": model.bound_seconds(op, size, setting),
        "busiest": ours.busiest,
        "busy": ours.busy,
        "infiniband_seconds": None,
    }
    if op in model.OPS and setting.ranks > 1:
        row["infiniband_seconds"] = nccl.seconds(
            op, size, setting.hosts, gpus_per_host=setting.gpus_per_host, adapters=adapters
        )
    return row


def _cells(row: dict[str, object]) -> list[str]:
    def time(name: str) -> str:
        value = row[name]
        return "-" if value is None else tables.time_text(float(str(value)))

    return [
        str(row["op"]),
        tables.bytes_text(int(str(row["bytes"]))),
        time("seconds"),
        time("bound_seconds"),
        time("infiniband_seconds"),
        str(row["busiest"]) or "-",
        f"{float(str(row['busy'])):.0%}",
    ]


def _write(docs: pathlib.Path) -> int:
    from lab.simulator import plots, report

    results = docs / "data" / "model.json"
    try:
        results_file.write(results, report.tables())
        plots.write(docs / "img")
    except ImportError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    print(f"wrote {results} and {docs / 'img'}")
    return 0
