"""Set-up of all tests: eight CPU devices, each of which is a rank, and the pool that they use.

`JAX_CXL_TEST_POOL=incoherent`, `flush` or `uncached` runs the tests, and the jobs that they start,
on such a pool; `JAX_CXL_TEST_SEED` is what chance starts from in an incoherent one. The C++ tests
read the same two variables (cc/pool/chosen_pool_testing.h).
"""

import os
import signal

import jax

_POOLS = {
    "coherent": "shm:",
    "flush": "shm:?coherence=flush",
    "uncached": "shm:?coherence=uncached",
    "incoherent": "incoherent:?seed={seed}",
}
# For these it makes no difference:
_WITHOUT_THE_CHOSEN_POOL = [
    # They say which pool they use.
    "deaths_test.py",
    "ending_test.py",
    "incoherent_test.py",
    "initialize_test.py",
    # They open none.
    "bench_device_time_test.py",
    "compiled_for_gpus_test.py",
    "launch_output_test.py",
    "launch_test.py",
    "platform_test.py",
    "pool_uri_test.py",
    "simulate_test.py",
    # It needs GPUs.
    "cuda_test.py",
]

# Not through XLA_FLAGS: processes that tests start would inherit it.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

# Most of the time goes into compiling what surrounds the collectives. Here and in the jobs that
# tests start.
jax.config.update("jax_disable_most_optimizations", True)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# A shell's background processes ignore SIGINT, and would the jobs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

if chosen := os.environ.get("JAX_CXL_TEST_POOL"):
    seed = os.environ.get("JAX_CXL_TEST_SEED", "0")
    os.environ["JAX_CXL_POOL"] = _POOLS[chosen].format(seed=seed)
    collect_ignore = _WITHOUT_THE_CHOSEN_POOL
