"""Parts of jax_suite.py."""
