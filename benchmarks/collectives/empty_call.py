"""Registers a custom call that does nothing, for any operands, results and attributes."""

import ctypes
import os
import pathlib
import subprocess
import tempfile

import jax

_SOURCE = pathlib.Path(__file__).with_suffix(".cc")


def register(*targets: str, platform: str = "cpu") -> None:
    """Compiles empty_call.cc with c++ (or $CXX), and registers it under each of the names.

    Args:
      targets: names of custom calls.
      platform: "cpu" or "CUDA".
    """
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/empty_call.so"
        command = [os.environ.get("CXX", "c++"), "-O2", "-std=c++17", "-shared", "-fPIC"]
        command += ["-isystem", jax.ffi.include_dir(), str(_SOURCE), "-o", library]
        subprocess.run(command, check=True)
        handler = ctypes.CDLL(library).jax_cxl_benchmark_empty
    for target in targets:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform=platform)
