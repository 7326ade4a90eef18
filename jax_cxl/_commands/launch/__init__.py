"""The local launcher, `python -m jax_cxl.launch`, and `jax_cxl.run`.

`cli` reads the command line. `supervisor` starts the ranks, watches them and ends them. `rank` runs
in each rank before the user's script.

Nothing here imports JAX, because the script may set environment variables that JAX reads when it is
imported.
"""
