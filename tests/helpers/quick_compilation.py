"""Settings with which XLA compiles small programs in half the time.

They choose XLA's older emitters. JAX 0.11.1 no longer has these, so from this version on the
settings are empty. The older emitters support only NumPy's own dtypes. They also fuse differently,
so that sums of floats may be rounded differently.
"""

import os

import jax

_AVAILABLE = jax.__version_info__ < (0, 11, 1)

# Compiler options of one program.
OPTIONS = {"xla_cpu_use_fusion_emitters": False} if _AVAILABLE else {}

# Environment variables of a job.
ENVIRONMENT = (
    {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"}
    if _AVAILABLE
    else {}
)
