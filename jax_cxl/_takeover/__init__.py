"""The compiler's door: collectives of any JAX program, taken over from XLA.

A hook in XLA's compiler gets each partitioned module. It exchanges the collectives that span
processes for calls of this package (`rewrite.py`), and numbers all calls, also those of the
functions `jax_cxl.*` (`hook.py`), so that ranks can match them.
"""
