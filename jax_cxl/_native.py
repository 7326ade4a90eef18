"""Finds the native module.

Python looks for modules in the current folder first. In a checkout, `python -m jax_cxl` and
`python -m pytest` therefore import the sources of the checkout. If the native module exists only in
an installed jax_cxl, it is imported from there.
"""

import importlib.machinery
import importlib.util
import os
import sys

MODULE = "_core"
# The import of pathlib would take longer than the rest of this module.
_HERE = os.path.dirname(os.path.abspath(__file__))


def elsewhere() -> list[str]:
    """Returns the folder of an installed jax_cxl, if this package has no native module."""
    if _has_module(_HERE):
        return []
    name = os.path.basename(_HERE)
    folders = [os.path.join(entry or os.getcwd(), name) for entry in sys.path]
    return [folder for folder in folders if folder != _HERE and _has_module(folder)][:1]


def problem() -> str | None:
    """Returns why the native module of this package cannot be imported, None if it can be."""
    if importlib.util.find_spec(f"{__package__}.{MODULE}") is not None:
        return None
    version = ".".join(map(str, sys.version_info[:2]))
    return (
        f"{_HERE} has no native module {MODULE} for Python {version}, and no other jax_cxl is"
        f" installed that has it. Build it: pip install -e {os.path.dirname(_HERE)}"
    )


def _has_module(folder: str) -> bool:
    suffixes = set(importlib.machinery.EXTENSION_SUFFIXES)
    if sys.version_info < (3, 12):  # The stable ABI of the wheels begins with Python 3.12.
        suffixes.discard(".abi3.so")
    return any(os.path.exists(os.path.join(folder, f"{MODULE}{suffix}")) for suffix in suffixes)
