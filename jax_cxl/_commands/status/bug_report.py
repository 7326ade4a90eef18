"""The text that `python -m jax_cxl doctor` gives for a bug report."""

import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping, Sequence

from jax_cxl import _native
from jax_cxl._commands.status import hardware
from jax_cxl._commands.status.finding import Finding

_PACKAGES = ("jax_cxl", "jax", "jaxlib", "numpy", "jax-cuda13-plugin", "jax-cuda12-plugin")
# Settings that change what jax_cxl, JAX, XLA or NCCL do.
_PREFIXES = ("JAX_", "XLA_", "NCCL_", "CUDA_", "LIBTPU_")
_LAUNCHERS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "KUBERNETES_SERVICE_HOST")
_GIB = 1 << 30


def lines(findings: Sequence[Finding], environment: Mapping[str, str]) -> Iterator[str]:
    """Yields the report: versions, machine, results of the checks, and settings."""
    yield f"versions: {', '.join(_versions())}"
    yield f"system: Python {platform.python_version()}, {platform.platform()}"
    model = hardware.cpuinfo().get("model name", platform.machine())
    processors = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} processors"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield f"machine: {model}, {processors}, {memory / _GIB:.0f} GiB of memory"
    for finding in findings:
        if finding.level != "ok" or finding.text.startswith(("/dev/shm", "GPU", "dax")):
            yield f"{finding.level}: {finding.text}"
    for name in sorted(environment):
        if name.startswith(_PREFIXES) or name in _LAUNCHERS:
            yield f"setting: {name}={environment[name]}"


def _versions() -> Iterator[str]:
    for package in _PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            if not package.endswith("-plugin"):
                yield f"{package} absent"
    if missing := _native.problem():
        yield missing
