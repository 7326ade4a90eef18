"""The stages of the suite that measure several settings in turn, and print a table of the times."""

import json
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from lab.gpu import measurements
from lab.gpu.process import Record, StageError, Suite

_KIB, _MIB = 1 << 10, 1 << 20
_NEVER = str(10**12)


def started(suite: Suite) -> Record:
    """Measures calls with start and done, executed by copy engines and by kernels.

    The copy engines run with several sizes of chunks, in one pipeline and in two.
    """
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
    """Measures kernels with several sizes of rounds and numbers of blocks, in `flush` pools.

    For comparison, it also measures a coherent pool.
    """
    flags = ("--ops=all_gather,all_reduce,broadcast,reduce", "--sizes=1048576,16777216")
    coherent = _engine(suite, *flags, "--coherence=coherent")
    rows = _engine(
        suite,
        *(*flags, "--coherence=flush", "--kernel_slots=0x524288,1048576x524288,524288x524288"),
        "--shapes=64x64x448,32x64x448,16x128x384",
    )
    rows = coherent + rows
    _print_table(rows, lambda row: f"{row['coherence']} {row['kernel_slots']} {row['shape']}")
    return {"results": rows}


def flush_flags(suite: Suite) -> Record:
    """Measures short calls in `flush` pools, which signal by flags in the data or by doorbells."""
    flags = (
        "--sizes=4096,16384,32768,65536,131072",
        "--ops=all_gather,all_reduce,all_to_all,reduce",
    )
    coherent = _engine(suite, *flags, "--coherence=coherent")
    rows = _engine(suite, *flags, "--coherence=flush,memory", "--flagged=0,262144")
    rows = coherent + rows
    _print_table(rows, lambda row: f"{row['coherence']} flags up to {row['flagged']} bytes")
    return {"results": rows}


def jit_flags(suite: Suite) -> Record:
    """Measures examples/train_jit.py with several flags of XLA's scheduler."""
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


def snapshot_chunks(suite: Suite) -> Record:
    """Measures saves of 4 GiB with different sizes of chunks and numbers of simultaneous copies."""
    rows = []
    small = () if suite.platform == "cuda" else ("--mib=64", "--step_ms=5")
    for chunk, under_way in ((16, 4), (8, 8), (32, 4)):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "costs.json"
            suite.launch(
                *(
                    "benchmarks/snapshots/snapshot_costs.py",
                    f"--json={path}",
                    "--orbax=false",
                    "--rounds=3",
                ),
                *("--steps=1", "--step_ms=5", "--mib=4096", *small, f"--chunk_mib={chunk}"),
                f"--under_way={under_way}",
            )
            found = json.loads(path.read_text())["results"]
        name = f"{chunk} MiB, {under_way} at a time"
        times = {row["what"]: row["median"] for row in found}
        print(f"  {name}: " + ", ".join(f"{k} {v * 1e3:.1f}" for k, v in times.items()))
        rows.append({"setting": name, "results": found})
    return {"results": rows}


def _engine(suite: Suite, *flags: str) -> list[dict[str, Any]]:
    """Runs the C++ benchmark of the CUDA engine, whose settings take turns; returns its rows."""
    # If ranks share a GPU, their copies may wait for each other in one queue of the GPU.
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
