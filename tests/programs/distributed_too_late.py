"""Uses a device before jax_cxl can connect the processes. The error must say what to change."""

import jax

import jax_cxl

jax.devices()
jax_cxl.initialize()
