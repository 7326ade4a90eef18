"""The command `python -m jax_cxl store`: `cli` reads its arguments."""
