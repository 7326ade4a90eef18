"""jax_cxl.explain: which collectives of a function go through the pool, and which do not."""

import itertools
import re
import threading
from collections.abc import Callable
from typing import Any

import jax

from jax_cxl._takeover import install, survey

_numbers = itertools.count(1)
_lock = threading.Lock()


def explain(function: Callable, *arguments: Any, **keywords: Any) -> survey.Program:
    """Returns which collectives of a function go through the pool, which do not, and why.

    It compiles the function again, and does not run it. A collective that XLA's partitioner or
    autodiff inserts is listed too: with `check_vma=True`, the gradient of a function that calls
    `jax_cxl.psum` contains sums that XLA executes. With `JAX_CXL_LOG=info` every program that is
    compiled prints the same table.

    Args:
      function: a function, or the result of `jax.jit`. All processes must call `explain` with it
        if any of them does so before `jax_cxl.initialize`.
      *arguments: its arguments, arrays or `jax.ShapeDtypeStruct`.
      **keywords: its keyword arguments.

    Returns:
      The program. `str` makes a table of it; `collectives` has a record for each collective, with
      `name`, `result`, `ranks`, `line`, `through` ("pool" or "XLA") and `why`.

    Raises:
      Exception: any error that tracing or compiling the function raises.

    Example:
      >>> mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> total = jax.shard_map(lambda x: jax_cxl.psum(x, "i") + jax.lax.pmax(x, "i"),
      ...                       mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
      >>> [(c.name, c.through) for c in jax_cxl.explain(total, jnp.arange(8.0)).collectives]
      [('all-reduce', 'XLA'), ('psum', 'pool')]
    """
    install.install()
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    found: list[survey.Program] = []
    # Allow one call at a time: the listener cannot distinguish programs of equal names.
    with _lock:
        survey.listeners.append(found.append)
        try:
            with survey.request(f"{next(_numbers)}"):
                lowered = jitted.lower(*arguments, **keywords)
                name = re.search(r"module @(\S+)", lowered.as_text()[:1000])
                lowered.compile()
        finally:
            survey.listeners.remove(found.append)
    programs = [each for each in found if name is None or each.name == name[1]]
    return programs[-1]
