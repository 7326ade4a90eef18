"""Compiler options with which small programs compile in half the time."""

import jax

# XLA's older emitters, which JAX 0.12 no longer has. They support NumPy's own dtypes only.
OPTIONS = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 12) else {}
