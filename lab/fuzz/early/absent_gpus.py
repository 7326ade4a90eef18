"""Compiles for GPUs that this machine may lack. JAX's CUDA plugin has to be on Python's path."""

import jax
from jax.experimental import topologies

from jax_cxl import _core
from jax_cxl._lowering import contract

# The name of a custom call with a side effect, like the calls that jax.debug.callback makes.
SIDE_EFFECT = "fuzz_side_effect"

# The properties of a GPU that the compiler needs, roughly those of an H100.
_GPU = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3350000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 80000000000
  cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100"
"""


def devices(processes: int, gpus: int) -> list[jax.Device]:
    """Returns GPUs that do not exist, but for which programs can be compiled.

    Args:
      processes: number of processes.
      gpus: number of GPUs of each process.
    """
    shape = f"1x{processes}x{gpus}"
    return list(
        topologies.get_topology_desc("", "cuda", target_config=_GPU, topology=shape).devices
    )


def register_handlers() -> None:
    """Registers a handler under the name of each custom call of jax_cxl, so that XLA compiles it.

    No handler is ever called.
    """
    for name, stages in _core.registrations().items():
        jax.ffi.register_ffi_target(name, stages["execute"], platform="CUDA")
        handler = stages["execute"]
    targets = {name for key, name in vars(contract).items() if key.endswith("_TARGET")}
    for name in (*targets - {*_core.registrations()}, SIDE_EFFECT):
        jax.ffi.register_ffi_target(name, handler, platform="CUDA")
