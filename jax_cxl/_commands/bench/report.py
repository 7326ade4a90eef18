"""The output of a run: the table, the head of the results file, the plot."""

import importlib.metadata
import os
import pathlib
import platform
import sys
from typing import Any, TextIO

import jax
import jaxlib
import numpy as np

from jax_cxl._commands import plotting
from jax_cxl._commands.bench.backends import Shape
from jax_cxl._commands.bench.measure import Row, Times


class Table:
    """Prints rows, in the columns of nccl-tests.

    Args:
      out: where to print; None prints nothing.
      ranks: number of ranks, for the heading.
      heading: whether to print it.
    """

    def __init__(self, out: TextIO | None, ranks: int, heading: bool = True):
        self._out = out
        if heading:
            self._print_heading(ranks)

    def _print_heading(self, ranks: int) -> None:
        self._print(f"# {ranks} ranks, emulated pool in shared memory of one machine")
        self._print(
            f"#{'size':>10} {'count':>10} {'type':>8} {'redop':>5}  {'op':<12} {'backend':<11}"
            f" {'min':>10} {'median':>10} {'max':>10} {'algbw':>8} {'busbw':>8} {'#wrong':>6}"
            f" {'bound':>6} {'written':>10}"
        )
        self._print(
            f"#{'(B)':>10} {'(elements)':>10} {'':>8} {'':>5}  {'':<12} {'':<11}"
            f" {'(us)':>10} {'(us)':>10} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8} {'':>6}"
            f" {'share':>6} {'(B)':>10}"
        )

    def add(self, row: Row) -> None:
        """Prints one row."""
        redop = "sum" if row.op.reduces else "none"
        times = row.times
        self._print(
            f" {row.bytes:>10} {row.count:>10} {row.dtype:>8} {redop:>5}  {row.op.name:<12}"
            f" {row.backend:<11} {times.min:>10.2f} {times.median:>10.2f} {times.max:>10.2f}"
            f" {row.algbw_gbps:>8.3f} {row.busbw_gbps:>8.3f} {row.wrong:>6}"
            f" {'-' if row.bound_share is None else format(row.bound_share, '.0%'):>6}"
            f" {'-' if row.written is None else row.written:>10}"
        )

    def add_device_times(self, shape: Shape, backend: str, times: Times) -> None:
        """Prints a row with the times of a call on the device."""
        self._print(
            f" {shape.bytes:>10} {shape.count:>10} {shape.dtype.name:>8} {'':>5}"
            f"  {shape.op.name:<12} {backend:<11} {times.min:>10.2f} {times.median:>10.2f}"
            f" {times.max:>10.2f} on the device"
        )

    def close(self, results: list[dict[str, Any]]) -> int:
        """Names baselines with wrong results. Returns the exit status: 1 if jax_cxl was wrong."""
        wrong = {result["backend"] for result in results if result["wrong"]}
        for baseline in sorted(wrong - {"jax_cxl"}):
            self._print(f"# {baseline} gave wrong results: see Caveats in docs/benchmarking.md")
        return 1 if "jax_cxl" in wrong else 0

    def _print(self, line: str) -> None:
        if self._out is not None:
            print(line, file=self._out, flush=True)


def machine(load_before: float) -> dict[str, Any]:
    """Returns a description of this machine, and its load."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        **({} if jax.default_backend() == "cpu" else {"gpu": jax.devices()[0].device_kind}),
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
    }


def header(load_before: float, command: str, mpi: str | None = None) -> dict[str, Any]:
    """Returns the head of a results file, which comes before the results."""
    return {
        "machine": machine(load_before),
        "command": command,
        "versions": versions(mpi),
        "emulated": True,
    }


def versions(mpi: str | None) -> dict[str, str]:
    """Returns the versions of all measured software."""
    try:
        ours = importlib.metadata.version("jax_cxl")
    except importlib.metadata.PackageNotFoundError:
        ours = "not installed"  # Run from a checkout.
    found = {
        "jax_cxl": ours,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return found | ({"mpi": mpi} if mpi else {})


def write_plot(path: pathlib.Path, found: dict[str, Any]) -> None:
    """Draws bus bandwidth over size: a panel for each operation, a curve for each backend."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    rows = [row for row in found["results"] if row["bytes"]]  # A barrier has no bandwidth.
    ops = list(dict.fromkeys(row["op"] for row in rows))
    names = list(dict.fromkeys(row["backend"] for row in rows))
    figure, axes = pyplot.subplots(
        *(1, len(ops)),
        figsize=(max(2.6 * len(ops), 5), 3.6),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for panel, op in zip(axes[0], ops, strict=True):
        for name in names:
            mine = [r for r in rows if (r["op"], r["backend"]) == (op, name)]
            sizes = [r["bytes"] for r in mine]
            plotting.curve(panel, name, sizes, [r["busbw_gbps"] for r in mine], marker="o")
        panel.set(title=op, yscale="log")
        plotting.size_ticks(panel, sorted({row["bytes"] for row in rows if row["op"] == op}))
        panel.grid(alpha=0.3)
    axes[0][0].set_ylabel("bus bandwidth, GB/s")
    plotting.legend(figure, axes[0][0])
    ranks = rows[0]["ranks"]
    figure.suptitle(f"{ranks} ranks, emulated pool in shared memory of one machine")
    plotting.save(figure, path)


def show_progress(text: str) -> None:
    """Shows the current measurement on the last line of stderr."""
    sys.stderr.write(f"bench: {text}\r")
    sys.stderr.flush()


def _cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
