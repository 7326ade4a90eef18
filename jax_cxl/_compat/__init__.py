"""What this package takes from JAX's private modules: a module for each thing that it needs.

When this package is imported, it imports all of these modules, and each looks for the names that it
needs. So a version of JAX that lacks a name fails at this import, not in the first call. The names
have been the same since JAX 0.10.

Four other places follow JAX or XLA, and may need a change for a new version:

* `_job/launched/detect.py` adds cluster environments to `jax._src.clusters`, when JAX imports them;
* `_commands/launch/coordinator.py` starts the coordination service of `jaxlib._jax`;
* `_takeover/hlo/module.py` has the field numbers of XLA's protocol buffers;
* `_takeover/config.py` writes attributes as MLIR prints them.
"""

import jax

from jax_cxl import _text

try:
    from jax_cxl._compat import (
        arrays as arrays,
        backends as backends,
        checkpoint as checkpoint,
        compilation as compilation,
        dispatch as dispatch,
        distributed as distributed,
        tracing as tracing,
    )
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"jax_cxl does not work with jax {jax.__version__}: {_text.clause(error)}. jax_cxl is"
        " tested with jax 0.10 to 0.12: install one of these, or a newer jax_cxl."
    ) from error
