"""The entry point by which JAX finds jax_cxl. `JAX_CXL_REPLACE_COLLECTIVES` needs it."""

import os
import sys

from jax_cxl import _text
from jax_cxl._job import variables


def wanted() -> bool:
    """Returns whether `JAX_CXL_REPLACE_COLLECTIVES` asks for collectives to be replaced."""
    return os.environ.get(variables.REPLACE_COLLECTIVES, "") not in ("", "0")


def is_installed() -> bool:
    """Returns whether JAX finds the entry point in this environment."""
    # pip installs the entry point in a folder of sys.path. importlib.metadata knows more places,
    # but its import takes a quarter of the launcher's time.
    import pathlib

    for folder in map(pathlib.Path, sys.path):
        for file in folder.glob("jax_cxl-*.dist-info/entry_points.txt"):
            return "[jax_plugins]" in file.read_text().split()
    from importlib import metadata

    return any(p.name == "jax_cxl" for p in metadata.entry_points(group="jax_plugins"))


def absent() -> str:
    """Returns why `JAX_CXL_REPLACE_COLLECTIVES` has no effect without the entry point."""
    return (
        f"{variables.REPLACE_COLLECTIVES} has no effect: JAX finds jax_cxl by the entry point of"
        " the installed package, which is not there. Install it in a checkout of jax_cxl:"
        " pip install ."
    )


def warn_if_absent() -> None:
    """Warns if collectives are to be replaced, but JAX does not find the entry point."""
    if wanted() and not is_installed():
        _text.warn("jax_cxl: warning: %s", absent())
