"""Set-up of all tests: eight CPU devices, each of which is a rank."""

import jax

# Not through XLA_FLAGS: processes that tests start would inherit it.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
