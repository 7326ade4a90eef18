"""Takes collectives of any JAX program over from XLA.

A hook in XLA's compiler gets each partitioned module. It replaces the collectives that span
processes by calls of this package (`rewrite.py`). In a module that it changes, it numbers all
calls, including those of the functions `jax_cxl.*` (`hook.py`), so that ranks can match them.
"""
