"""Finds this package's NCCL library and NVIDIA's, and makes the environment that loads them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

# What starts the commands of this package, in jax_cxl and in the wheel jax_cxl_nccl.
PROGRAM = "python -m " + __package__.replace("._", " ")
_NAME = "libnccl.so.2"
# What counts as a host: cc/nccl/interface/settings.h.
HOSTS = ("machines", "processes", "all")
# With these variables vLLM and SGLang open a library by its path, which LD_PRELOAD does not change.
_PATHS = ("VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH")


def path() -> pathlib.Path:
    """Returns this package's library."""
    # In a checkout, the package's path may include the folder of an installed jax_cxl, which has
    # the library.
    top, *inner = __name__.split(".")[:-1]
    found = [pathlib.Path(folder, *inner, _NAME) for folder in sys.modules[top].__path__]
    library = next(filter(pathlib.Path.exists, found), None)
    if library is None:
        raise FileNotFoundError(
            f"there is no {found[0]}: it is built with the module for GPUs, on x86-64 machines with"
            " nvcc on PATH. Install jax_cxl again on such a machine"
        )
    return library


def real_path() -> pathlib.Path | None:
    """Returns NVIDIA's library in the wheel that is installed, None if there is no wheel.

    Without a wheel, this package's library searches for NVIDIA's as the process's dynamic loader
    does.
    """
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        library = pathlib.Path(folder) / "lib" / _NAME
        if library.exists():
            return library
    return None


def default_hosts(base: Mapping[str, str] = os.environ) -> str:
    """Returns what counts as a host, one of `HOSTS`, if the user does not say it.

    Each machine does if `JAX_CXL_NCCL_POOL` names memory that several machines map. Otherwise the
    pools lie in /dev/shm and serve the GPUs of one machine, so each GPU counts as a host.
    """
    return "machines" if base.get("JAX_CXL_NCCL_POOL") else "all"


def command_parser(prog: str, description: str, **options: Any) -> argparse.ArgumentParser:
    """Returns the parser of a command. Its help keeps the texts' line breaks."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **options,
    )


def add_hosts_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that chooses what counts as a host."""
    parser.add_argument(
        "--hosts",
        choices=HOSTS,
        default=default_hosts(),
        help="what counts as a host. Communicators of NCCL whose ranks lie in several hosts go"
        " through pools, and the others to NCCL. all: every GPU (default: machines if"
        " JAX_CXL_NCCL_POOL is set, otherwise all)",
    )


def environment(
    hosts: str, base: Mapping[str, str] = os.environ, *, one_gpu: bool = False
) -> dict[str, str]:
    """Returns the variables that let a program call NCCL through the pool.

    Communicators over several `hosts` (one of `HOSTS`) go through the pool. `one_gpu` tells whether
    each process has one GPU.
    """
    preloaded = [str(path()), *filter(None, base.get("LD_PRELOAD", "").split(":"))]
    variables = {
        "LD_PRELOAD": ":".join(dict.fromkeys(preloaded)),
        **dict.fromkeys(_PATHS, preloaded[0]),
        "JAX_CXL_NCCL_HOSTS": hosts,
    }
    if not one_gpu:
        # If CUDA loads a kernel late, it first waits for running kernels. Those may wait for
        # another GPU of this process. So load all kernels early.
        variables["CUDA_MODULE_LOADING"] = base.get("CUDA_MODULE_LOADING", "EAGER")
    real = real_path()
    if real is not None and "JAX_CXL_NCCL_LIBRARY" not in base:
        variables["JAX_CXL_NCCL_LIBRARY"] = str(real)
    return variables


def describe(hosts: str, base: Mapping[str, str] = os.environ) -> str:
    """Returns a sentence: which communicators of a program go through pools, or why none does."""
    none = "no communicator of NCCL goes through a pool"
    pool = base.get("JAX_CXL_NCCL_POOL")
    if not has_gpu():
        return f"{none}: this machine has no NVIDIA GPU (there is no /dev/nvidia0)"
    if hosts == "machines" and not pool:
        return (
            f"{none}: JAX_CXL_NCCL_HOSTS=machines needs memory that several machines share, which"
            " JAX_CXL_NCCL_POOL names"
        )
    given = base.get("JAX_CXL_NCCL_LIBRARY")
    if given and not os.path.exists(given):
        return f"{none}: JAX_CXL_NCCL_LIBRARY={given}, NVIDIA's NCCL, does not exist"
    of = {"all": "GPUs"}.get(hosts, hosts)
    real = given or real_path() or "NVIDIA's NCCL that the program brings (this Python has none)"
    if os.path.exists(real) and not _is_library(pathlib.Path(real)):
        return (
            f"{none}: {real} is not a library for 64-bit machines like this one: install its"
            " package again on this machine"
        )
    said = [
        f"communicators of NCCL over several {of} go through pools in {pool or '/dev/shm'}, and the"
        f" others to {real}; NCCL_DEBUG=INFO names each"
    ]
    for name in _PATHS:
        if base.get(name, "") not in ("", str(path())):
            said.append(f"{name}={base[name]} is replaced")
    return "; ".join(said)


def become(program: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Makes this process run a program. A name that ends in .py is a script for this Python."""
    command = [sys.executable, *program] if program[0].endswith(".py") else list(program)
    found = shutil.which(command[0])
    if found is None:
        raise FileNotFoundError(f"there is no program {command[0]}")
    sys.stdout.flush()
    os.execve(found, command, variables)


def has_gpu() -> bool:
    """Returns whether an NVIDIA driver is there, on Linux or in Windows' subsystem for Linux."""
    places = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version")
    return any(map(os.path.exists, places))


def _is_library(file: pathlib.Path) -> bool:
    with file.open("rb") as begin:
        return begin.read(6) == b"\x7fELF\x02\x01"
