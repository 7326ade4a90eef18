"""The output of a run: the rows of the table, the head of the results file."""

import importlib.metadata
import os
import platform
from collections.abc import Callable
from typing import Any

import jax
import jaxlib
import numpy as np

from jax_cxl._commands.measuring.ops import Shape
from jax_cxl._commands.status import hardware

_CASE = "{:>10} {:>10} {:>8} {:>5}  {:<12} {:<11} {:>10} {:>10} {:>10} "
_RATES = "{:>8} {:>8} {:>6} {:>10}"


def heading(ranks: int) -> str:
    """Returns the lines above the rows, whose columns are those of nccl-tests."""
    names = ("size", "count", "type", "redop", "op", "backend", "min", "median", "max")
    rates = ("algbw", "busbw", "#wrong", "written")
    units = ("(B)", "(elements)", "", "", "", "", "(us)", "(us)", "(us)")
    return (
        f"# {ranks} ranks, emulated pool in shared memory of one machine\n"
        f"#{_CASE.format(*names)}{_RATES.format(*rates)}\n"
        f"#{_CASE.format(*units)}{_RATES.format('(GB/s)', '(GB/s)', '', '(B)')}"
    )


def row(shape: Shape, result: dict[str, Any]) -> str:
    op = shape.op
    case = _CASE.format(
        *(shape.bytes, shape.count, shape.dtype.name, "sum" if op.sums else "none", op.name),
        *(result["backend"], *(f"{time:.2f}" for time in result["time_us"].values())),
    )
    rates = _RATES.format(
        *(f"{result['algbw_gbps']:.3f}", f"{result['busbw_gbps']:.3f}", result["wrong"]),
        result.get("bytes_written", "-"),
    )
    return f" {case}{rates}"


def status(results: list[dict[str, Any]], tell: Callable[[str], None]) -> int:
    """Names baselines with wrong results. Returns the exit status: 1 if jax_cxl was wrong."""
    wrong = {result["backend"] for result in results if result["wrong"]}
    for baseline in sorted(wrong - {"jax_cxl"}):
        tell(f"# {baseline} gave wrong results: see Caveats in docs/benchmarking.md")
    return 1 if "jax_cxl" in wrong else 0


def header(load_before: float, command: str) -> dict[str, Any]:
    """Returns the head of a results file, which comes before the results."""
    return {
        "machine": machine(load_before),
        "command": command,
        "versions": versions(),
        "emulated": True,
    }


def machine(load_before: float) -> dict[str, Any]:
    """Returns a description of this machine, and its load."""
    return {
        "cpu": hardware.cpuinfo().get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        **({} if jax.default_backend() == "cpu" else {"gpu": jax.devices()[0].device_kind}),
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Returns the versions of all measured software."""
    try:
        ours = importlib.metadata.version("jax_cxl")
    except importlib.metadata.PackageNotFoundError:
        ours = "not installed"  # Run from a checkout.
    return {
        "jax_cxl": ours,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
