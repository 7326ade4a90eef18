"""Uses a device before jax_cxl can connect the processes: an error gives advice."""

import jax

import jax_cxl

jax.devices()
jax_cxl.initialize()
