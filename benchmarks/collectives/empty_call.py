"""Registers custom calls that move no data. They accept any operands, results and attributes."""

import ctypes
import os
import pathlib
import subprocess
import tempfile

import jax

_SOURCE = pathlib.Path(__file__).with_suffix(".cc")


def register(*targets: str, platform: str = "cpu") -> None:
    """Registers a custom call that does nothing, under each name in `targets`.

    Args:
      targets: names of custom calls.
      platform: "cpu" or "CUDA".
    """
    _register(_compiled().jax_cxl_benchmark_empty, targets, platform)


def register_waiting(*targets: str, path: str, rank: int, size: int) -> None:
    """Registers a custom call for CPUs under each name in `targets`.

    The call waits until every rank has made as many of these calls as this rank.

    Args:
      targets: names of custom calls.
      path: the file in which ranks count their calls. It must not exist before the first rank calls
        this function. Delete it once all ranks have returned.
      rank: rank of this process.
      size: number of ranks.

    Raises:
      OSError: the file cannot be mapped.
    """
    library = _compiled()
    if not library.jax_cxl_benchmark_meet(path.encode(), rank, size):
        raise OSError(f"{path} cannot be mapped: name a file in a folder that you may write to")
    _register(library.jax_cxl_benchmark_wait, targets, "cpu")


def _compiled() -> ctypes.CDLL:
    """Compiles empty_call.cc with c++ (or $CXX)."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/empty_call.so"
        command = [os.environ.get("CXX", "c++"), "-O2", "-std=c++17", "-shared", "-fPIC"]
        command += ["-isystem", jax.ffi.include_dir(), str(_SOURCE), "-o", library]
        subprocess.run(command, check=True)
        return ctypes.CDLL(library)


def _register(handler: object, targets: tuple[str, ...], platform: str) -> None:
    for target in targets:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform=platform)
