"""Set-up of all tests: eight CPU devices, each of which is a rank."""

import signal

import jax

# Not through XLA_FLAGS: processes that tests start would inherit it.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

# A shell's background processes ignore SIGINT, and would the jobs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
