"""The commands of `python -m jax_cxl`."""
