"""The model of `python -m jax_cxl simulate`. It needs no pool, no GPU and no JAX."""
