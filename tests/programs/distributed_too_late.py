"""Uses a device before jax_cxl can connect the processes: an error says what to do."""

import jax

import jax_cxl

jax.devices()
jax_cxl.initialize()
