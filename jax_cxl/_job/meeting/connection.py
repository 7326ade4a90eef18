"""Connects the processes of a job through JAX's coordination service."""

import os
import resource

import jax

from jax_cxl import _compat, _text, errors
from jax_cxl._job.launched import environment as launch_environment
from jax_cxl._job.meeting import arrival

# Files that jax.distributed and jax_cxl open, besides one for each other process.
_FILES = 24


def connect(connect_timeout: float) -> None:
    """Connects the processes of the job if there are several, unless the script has done so."""
    several = launch_environment.process_count_variable()
    if not jax.distributed.is_initialized() and (launch_environment.launched() or several):
        check_open_files(_FILES)
        if not _compat.backends.made():
            arrival.await_ranks(connect_timeout)
        try:
            jax.distributed.initialize()
        except (RuntimeError, ValueError) as error:
            raise errors.NotInitializedError(
                "This is one of several processes"
                + (f" ({several})" if several else "")
                + ", but they do not know of each other, and jax.distributed could not be"
                f" initialized: {_text.clause(error)}. Call jax.distributed.initialize(...) or"
                " jax_cxl.initialize() at the beginning of the script, before anything uses a"
                " device."
            ) from error


def check_open_files(more: int) -> None:
    """Raises an error if this process may not open the given number of further files.

    Libraries that cannot open a file report errors such as "random_device not available".
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = limit - len(os.listdir("/proc/self/fd"))
    if left < more:
        raise errors.NotInitializedError(
            f"this process can open only {left} more files (its limit is {limit}), but a job of"
            f" several processes needs {more}: raise the limit (ulimit -n)"
        )
