"""The model behind `python -m jax_cxl simulate`: no pool, no GPU, no JAX needed."""
