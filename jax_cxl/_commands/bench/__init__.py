"""`python -m jax_cxl bench`: measures collectives as nccl-tests does (docs/benchmarking.md)."""
