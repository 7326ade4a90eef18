"""The frameworks whose arrays a program may have. The store imports none of them itself.

Only a program that has imported a framework has arrays of it. So a process that never imports JAX
needs NumPy alone to read and to publish. Modules that need JAX are imported where an array of JAX,
or a job of several processes, needs them: `_job.exchange`, `reading.on_devices`, `reading.on_gpus`,
`writing.joining`, `writing.gpu_programs`.
"""

import sys
from typing import Any


def jax() -> Any:
    """Returns the module `jax` if the program has imported it, else None."""
    return sys.modules.get("jax")


def torch() -> Any:
    """Returns the module `torch` if the program has imported it, else None."""
    return sys.modules.get("torch")
