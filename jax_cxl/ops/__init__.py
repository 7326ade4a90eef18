"""The collectives. public.py has their public names.

Most programs use only reductions, and start sooner if only the modules of the reductions are
imported. So this package imports public.py only when it is first asked for a name.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_cxl.ops.public import *


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'jax_cxl.ops' has no attribute {name!r}")
    public = importlib.import_module("jax_cxl.ops.public")
    # Some functions are named like their modules. The import has set these names to the modules, so
    # set them to the functions.
    globals()["__all__"] = public.__all__
    globals().update({each: getattr(public, each) for each in public.__all__})
    if name not in globals():
        raise AttributeError(f"module 'jax_cxl.ops' has no attribute {name!r}")
    return globals()[name]
