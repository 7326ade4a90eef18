"""Where the native modules are.

Python looks for modules in the current folder first. In a checkout, `python -m jax_cxl` and
`python -m pytest` therefore import the sources of the checkout. The native modules may exist in an
installed jax_cxl only.
"""

import importlib.util
import os
import pathlib
import sys

MODULES = ("_core", "_simulator")
_HERE = pathlib.Path(__file__).parent


def elsewhere() -> list[str]:
    """Returns the folder of an installed jax_cxl, if this one has no native modules."""
    if _has_modules(_HERE):
        return []
    folders = (pathlib.Path(entry or os.getcwd(), _HERE.name) for entry in sys.path)
    return [str(folder) for folder in folders if folder != _HERE and _has_modules(folder)][:1]


def problem(name: str) -> str | None:
    """Returns why a native module of this package cannot be imported, None if it can be."""
    if importlib.util.find_spec(f"{__package__}.{name}") is not None:
        return None
    version = ".".join(map(str, sys.version_info[:2]))
    return (
        f"{_HERE} has no native module {name} for Python {version}, and no other jax_cxl is"
        f" installed that has it. Build it: pip install -e {_HERE.parent}"
    )


def _has_modules(folder: pathlib.Path) -> bool:
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    return (
        any(tag in file.name for file in folder.glob("_core.*.so"))
        or (folder / "_core.so").exists()
    )
