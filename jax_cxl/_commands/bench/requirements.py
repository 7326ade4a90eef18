"""Checks that the machine has what the backends need, without importing JAX."""

import importlib.util
import os
import shutil

# Files that an NVIDIA driver makes: on Linux, and in Windows' subsystem for Linux.
_DRIVERS = ("/proc/driver/nvidia/version", "/dev/dxg")


def check(baselines: list[str], platform: str, dtype: str) -> None:
    """Checks, before anything starts, that this machine has what the options need.

    Raises:
      ValueError: something is missing. The message tells what to install or which option to change.
    """
    if platform == "cuda" and not importlib.util.find_spec("jax_cxl._cuda"):
        raise ValueError(
            "--platform cuda needs jax_cxl's CUDA module, which was not built: see docs/cuda.md."
        )
    if platform == "cuda" and not any(map(os.path.exists, _DRIVERS)):
        raise ValueError(
            "--platform cuda needs an NVIDIA GPU, and this machine has no driver: leave --platform"
            " out."
        )
    for name in baselines:
        if name.startswith("nccl-") and platform != "cuda":
            raise ValueError(f"--baseline {name} needs --platform cuda: NCCL moves GPU memory.")
        if not name.startswith("nccl-") and platform != "cpu":
            raise ValueError(f"--baseline {name} needs --platform cpu: it moves the host's memory.")
    if "mpi" in baselines:
        if dtype in ("float16", "bfloat16"):
            raise ValueError(f"--baseline mpi does not reduce {dtype}: choose another --dtype.")
        missing = [] if importlib.util.find_spec("mpi4py") else ["mpi4py (pip install mpi4py)"]
        if shutil.which("mpirun") is None:
            missing.append("mpirun (an MPI library, for example apt install openmpi-bin)")
        if missing:
            raise ValueError(f"--baseline mpi needs {' and '.join(missing)}.")
