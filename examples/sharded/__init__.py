"""Trainers whose parameters are divided among devices: by hand (FSDP), or by `jax.jit`."""
