"""Warns if a launcher started several processes together that are not connected."""

import functools
import logging
import os

import jax

from jax_cxl._job import variables

# Launchers set these variables. If one says that there are several processes, and jax.distributed
# is not initialized, the processes do not know of each other.
_PROCESS_COUNTS = (variables.SIZE, "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def told_by() -> str:
    """Returns the variable that shows that there are several processes, such as "PMI_SIZE=2", or
    "".
    """
    for name in _PROCESS_COUNTS:
        count = os.environ.get(name, "")
        if count.isdecimal() and int(count) > 1:
            return f"{name}={count}"
    return ""


@functools.cache
def warn() -> None:
    """Warns if this is one of several processes that do not know of each other.

    Such a process runs a job of its own. Nothing fails, but every result is that of one process.
    """
    variable = told_by()
    if variable and not jax.distributed.is_initialized():
        logging.getLogger("jax_cxl").warning(
            "jax_cxl: warning: this is one of several processes (%s), but they do not know of each"
            " other: each runs a job by itself, and its collectives reach no other process. Call"
            " jax_cxl.initialize() or jax.distributed.initialize() at the beginning of the script,"
            " before anything uses a device.",
            variable,
        )
