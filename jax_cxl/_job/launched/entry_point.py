"""The entry point by which JAX finds jax_cxl, and the variable that has no effect without it."""

import logging
import os

from jax_cxl._job import variables


def wanted() -> bool:
    """Returns whether `JAX_CXL_REPLACE_COLLECTIVES` asks for collectives to be replaced."""
    return os.environ.get(variables.REPLACE_COLLECTIVES, "") not in ("", "0")


def is_installed() -> bool:
    """Returns whether JAX finds the entry point in this environment."""
    # The import takes a quarter of the launcher's time, so it stands here.
    from importlib import metadata

    try:
        # Of this package alone: to read the entry points of all packages takes 30 ms.
        entry_points = metadata.distribution("jax_cxl").entry_points
    except metadata.PackageNotFoundError:
        return False
    return any(entry_points.select(group="jax_plugins", name="jax_cxl"))


def absent() -> str:
    """Returns why `JAX_CXL_REPLACE_COLLECTIVES` has no effect without the entry point."""
    return (
        f"{variables.REPLACE_COLLECTIVES} has no effect: JAX finds jax_cxl by the entry point of"
        " the installed package, which is not there. Install it: pip install jax_cxl, or in a"
        " checkout pip install -e ."
    )


def warn_if_absent() -> None:
    """Warns if collectives are to be replaced, but JAX does not find the entry point."""
    if wanted() and not is_installed():
        logging.getLogger("jax_cxl").warning("jax_cxl: warning: %s", absent())
