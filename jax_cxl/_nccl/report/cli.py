"""The command line of `python -m jax_cxl nccl report`."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from .. import library
from . import cuda, text, ways
from .ways import Way

_DESCRIPTION = """\
Measures the GPUs of this machine: their links, and NCCL's two ways through the host's memory in
turns with jax_cxl. It compares every result with values that it computes itself. It takes about
two minutes, and needs neither JAX nor PyTorch. Prints a report for an issue, and writes it to
nccl-report.md and nccl-report.json."""

ROUNDS = 5
OPS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")
SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
_MODELS = {"decode": ("decode step: 64 sums", 16 << 10), "prefill": ("prefill: 8 sums", 64 << 20)}
_ABOUT_MODELS = """\
Before each sum of a decode step (a CUDA graph, one token) and of a prefill (4,096 tokens) are two
matrix products of a decoder of width 8,192, divided between the cards, in bfloat16."""
_SHM_BYTES = 512 << 20


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 2 if something is missing, 1 if a way failed or was wrong."""
    parser = library.command_parser(f"{library.PROGRAM} report", _DESCRIPTION)
    parser.parse_args(arguments)
    if lacks(parser.prog):
        return 2
    cards = cuda.count()
    try:
        found = {**_machine(cards), **measure(cards)}
    except ways.WayError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    report = text.text(found)
    print(report)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    pathlib.Path("nccl-report.json").write_text(f"{{{lines}}}\n")
    pathlib.Path("nccl-report.md").write_text(report)
    return int(bool(found["failed"] or found["without"] or text.wrong(found["results"])))


def lacks(program: str) -> bool:
    """Prints what the command needs and this machine lacks; returns whether that is something."""
    lines = [f"{program}: {lack}\n" for lack in _missing()]
    sys.stderr.writelines(lines)
    return bool(lines)


def _missing() -> Iterator[str]:
    """Yields what a report needs and this machine lacks, and what to do."""
    try:
        library.path()
    except FileNotFoundError as error:
        yield str(error)
    try:
        if cuda.count() < 2:
            yield "CUDA sees fewer than two GPUs: check CUDA_VISIBLE_DEVICES"
    except (OSError, RuntimeError) as error:
        yield f"CUDA finds no GPU ({error}): install NVIDIA's driver; in Docker use --gpus all"
    try:
        ctypes.CDLL(ways.nccl())
    except OSError as error:
        yield f"there is no NCCL ({error}): pip install nvidia-nccl-cu13, or -cu12"
    if not os.access(".", os.W_OK):
        yield "files cannot be written in this folder: change to one of yours"
    space = os.statvfs("/dev/shm")
    free = space.f_bavail * space.f_frsize
    if free < _SHM_BYTES:
        yield (
            f"/dev/shm has {free >> 20} MiB free, and this needs {_SHM_BYTES >> 20}: in Docker"
            " use --shm-size=1g"
        )


def measure(cards: int) -> dict[str, Any]:
    """Returns the figures of all ways."""
    found: dict[str, Any] = {"rounds": ROUNDS, "remarks": []}
    # At least 2 calls, so that one follows another, and about 64 MiB.
    cases = [(op, size, max(2, min(200, (64 << 20) // size))) for op in OPS for size in SIZES]
    started = {
        name: Way(variables, cards, ways.PRELOADED if name == "pool" else ways.nccl())
        for name, variables in ways.environments(os.environ).items()
    }
    with contextlib.closing(ways.Ways(started)) as every:
        _say("measures links")
        found["links"] = _links(every.ways["nccl"], cards)
        _say("makes communicators, and compares results")
        for version, *_ in every.each(Way.start, max(SIZES)).values():
            found["nccl"] = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
        wrong = every.rounds(1, "check", cases)
        _say(f"measures {len(cases)} calls in {ROUNDS} rounds")
        times = every.rounds(ROUNDS, "microseconds", cases)
        found["failed"] = dict(every.failed)
        if "pool" in every.ways:
            goes = re.search(r"communicator .* goes (.*)", every.ways["pool"].said())
            found["goes"] = goes[1] if goes else "not known"
        found["results"] = []
        for i, op in enumerate(OPS):
            row: dict[str, Any] = {"call": op, "bytes": [*SIZES], "wrong": {}}
            for way, figures in times.items():
                here = slice(i * len(SIZES), (i + 1) * len(SIZES))
                row[way] = figures[here]
                row["wrong"][way] = [int(most) for *_, most in wrong[way][here]]
            found["results"].append(row)
        _say("measures a decode step and a prefill")
        torch = every.each(Way.ask, "start_models")
        found["torch"] = next((version for version, *_ in torch.values()), "")
        if found["torch"]:
            models = every.rounds(ROUNDS, "model", [(name,) for name in _MODELS])
            found["models"] = [
                {"call": call, "bytes": [size], **{way: [models[way][i]] for way in models}}
                for i, (call, size) in enumerate(_MODELS.values())
            ]
            found["remarks"].append(_ABOUT_MODELS.replace("\n", " "))
        else:
            found["remarks"].append("Without PyTorch there is no decode step and no prefill.")
        found["without"] = sorted(every.failed.keys() - found["failed"].keys())
        for way in found["without"]:
            found["remarks"].append(f"No decode step of {text.WAYS[way]}: {every.failed[way]}")
    return found


def _links(way: Way, cards: int) -> list[dict[str, Any]]:
    links = [{"cards": f"card {rank}", **way.ask("link", ranks=[rank])[0]} for rank in range(cards)]
    together = way.ask("link")
    total = {key: round(sum(link[key] for link in together), 1) for key in together[0]}
    return [*links, {"cards": "all cards at once, sum", **total}]


def _machine(cards: int) -> dict[str, Any]:
    """Returns what the report says of this machine."""
    cpu = re.search(r"^model name\s*: (.*)", _read("/proc/cpuinfo"), re.M)
    package = __name__.partition(".")[0]
    ours = "not installed"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        ours = importlib.metadata.version(package)
    return {
        "date": datetime.date.today().isoformat(),
        "cards": [cuda.describe(card, cards) for card in range(cards)],
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": platform.release(),
        "driver": _read("/sys/module/nvidia/version").strip() or "not known",
        "cuda": cuda.version(),
        "jax_cxl": f"{package} {ours}",
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("NCCL_", "JAX_CXL_"))
        },
    }


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return pathlib.Path(path).read_text()
    return ""


def _say(what: str) -> None:
    print(f"jax_cxl nccl report: {what}", file=sys.stderr, flush=True)
