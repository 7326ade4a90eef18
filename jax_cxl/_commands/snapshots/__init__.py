"""The command `python -m jax_cxl snapshots`: `cli` reads its arguments."""
