"""Registers custom calls without transport, for any operands, results and attributes."""

import ctypes
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterable

import jax

_SOURCE = pathlib.Path(__file__).with_suffix(".cc")


def register(
    *targets: str,
    waiting: Iterable[str] = (),
    meeting: tuple[str, int, int] | None = None,
    platform: str = "cpu",
) -> None:
    """Compiles empty_call.cc with c++ (or $CXX), and registers its calls.

    Args:
      targets: names of custom calls that do nothing.
      waiting: names of custom calls that wait until all ranks have made as many of them.
      meeting: for `waiting`: a new file that the ranks share, the rank, and the number of ranks.
      platform: "cpu" or "CUDA".
    """
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/empty_call.so"
        command = [os.environ.get("CXX", "c++"), "-O2", "-std=c++17", "-shared", "-fPIC"]
        command += ["-isystem", jax.ffi.include_dir(), str(_SOURCE), "-o", library]
        subprocess.run(command, check=True)
        calls = ctypes.CDLL(library)
    if meeting is not None:
        path, rank, size = meeting
        if not calls.jax_cxl_benchmark_meet(path.encode(), rank, size):
            raise OSError(f"{path} cannot be mapped: name a file that does not exist yet")
    for target in targets:
        handler = jax.ffi.pycapsule(calls.jax_cxl_benchmark_empty)
        jax.ffi.register_ffi_target(target, handler, platform=platform)
    for target in waiting:
        handler = jax.ffi.pycapsule(calls.jax_cxl_benchmark_wait)
        jax.ffi.register_ffi_target(target, handler, platform=platform)
