"""Stages that try settings in turns, and print a table of the times."""

import json
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from gpu import measurements
from gpu.process import Record, StageError, Suite

_KIB, _MIB = 1 << 10, 1 << 20
_NEVER = str(10**12)


def started(suite: Suite) -> Record:
    """Calls that a program starts: chunks and pipelines of the copy engines, and kernels."""
    sizes = "4718592,9437184,18874368"
    flags = ["--ops=all_gather,reduce_scatter", f"--sizes={sizes}", "--started=1,4"]
    chunks = [f"1x{size}" for size in (256 * _KIB, _MIB, 2 * _MIB)]
    chunks += [f"2x{size}" for size in (512 * _KIB, _MIB, 2 * _MIB)]
    by_engines = _engine(suite, *flags, "--aside=0", f"--copies={','.join(chunks)}")
    by_kernels = _engine(suite, *flags, f"--aside={_NEVER}", "--shapes=64x64x448,16x128x384")
    rows = by_engines + by_kernels
    _print_table(
        rows,
        lambda row: (
            f"started={row['started']} "
            + (f"copies={row['copies']}" if row["aside"] == 0 else f"kernels {row['shape']}")
        ),
    )
    return {"results": rows}


def flush_chunks(suite: Suite) -> Record:
    """Pools that nobody keeps coherent: chunks, threads, and the bytes that a thread takes."""
    ops = "--ops=all_gather,all_reduce,broadcast,reduce"
    chunks = ("0x524288", "0x262144", "0x131072", "0x65536", "524288x131072", "1048576x262144")
    shared = ("--coherence=coherent,flush",)
    rows = _engine(
        suite, ops, *shared, "--sizes=1048576,16777216", f"--kernel_slots={','.join(chunks)}"
    )
    _print_table(rows, lambda row: f"{row['coherence']} {row['kernel_slots']}")
    threads = _engine(
        suite,
        *("--ops=all_gather,all_reduce", "--sizes=1048576,16777216,268435456"),
        *("--coherence=flush", "--kernel_slots=0x131072", "--flush_threads=4,6,8"),
        "--flush_pieces=32768,65536,131072",
    )
    _print_table(threads, lambda row: f"threads={row['flush_threads']} {row['flush_pieces']}")
    shapes = _engine(
        suite,
        *("--ops=all_gather,broadcast,all_reduce", "--sizes=4096,65536,1048576,16777216"),
        *("--coherence=flush", "--kernel_slots=0x131072"),
        "--shapes=64x64x448,32x64x448,16x128x384",
    )
    _print_table(shapes, lambda row: f"shape {row['shape']}")
    slots = _engine(
        suite,
        *("--ops=all_gather,all_to_all,all_reduce,reduce_scatter", "--sizes=268435456"),
        *("--coherence=coherent,flush", "--slots=0x0,0x2097152,0x1048576"),
    )
    _print_table(slots, lambda row: f"{row['coherence']} slots {row['slots']}")
    return {"results": rows + threads + shapes + slots}


def jit_flags(suite: Suite) -> Record:
    """The example by jax.jit alone under several flags of XLA's scheduler."""
    settings = {
        f"{limit} at a time, {text}": (measurements.several(limit), *flags)
        for limit in (2, 4, 8)
        for text, flags in {
            "only sums apart": measurements.SEPARATE[:1],
            "all apart": measurements.SEPARATE,
        }.items()
    }
    rows = []
    for name, flags in settings.items():
        print(f"  {name}")
        found = measurements.jit_steps(suite, flags, "--programs=example", "--repeats=3")
        rows += [{"flags": name, **row} for row in found]
    return {"results": rows}


def tune(suite: Suite) -> Record:
    """Finds the threads and the bytes of a thread of this machine, by the command of users."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tuning.json"
        text, _ = suite.run(
            *(sys.executable, "-m", "jax_cxl", "tune", str(path)),
            *(f"--ranks={suite.ranks}", f"--platform={suite.platform}", "--turns=1"),
        )
        print("".join(f"  {line}\n" for line in text.splitlines()), end="")
        found = json.loads(path.read_text())
    return {"tuning": found["tuning"], "results": found["measured"]}


def _engine(suite: Suite, *flags: str) -> list[dict[str, Any]]:
    """Returns the rows of the C++ benchmark, whose settings take turns."""
    # Copies of ranks that share a GPU may wait for each other in one queue of the GPU.
    if suite.shares_gpu:
        raise StageError("skipped", reason="needs a GPU for each rank")
    text, complete = suite.run(
        *(str(suite.build / "cuda_device_benchmark"), f"--ranks={suite.ranks}"),
        *("--bound=0", "--repeats=2", *flags),
        check=False,
    )
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not complete:
        raise StageError("failed", results=rows)
    return rows


def _print_table(rows: Sequence[dict[str, Any]], name: Any) -> None:
    """Prints a line for each setting, with the microseconds of each operation and size."""
    columns = list(dict.fromkeys((row["op"], row["bytes"]) for row in rows))
    print("  us: " + ", ".join(f"{op} {size / _MIB:g}" for op, size in columns))
    table: dict[str, dict[tuple[str, int], float]] = {}
    for row in rows:
        table.setdefault(name(row), {})[row["op"], row["bytes"]] = row["time_us"]["median"]
    for setting, times in table.items():
        print(f"  {setting}: " + " ".join(f"{times.get(column, 0):.0f}" for column in columns))
