"""Finds environment variables that look like settings of jax_cxl but are not."""

import dataclasses
import difflib
import functools
import logging
import os
from collections.abc import Mapping

from jax_cxl._job import configuration, variables

_PREFIX = "JAX_CXL_"
# The tests and benchmarks of a checkout read these, and all that begin with JAX_CXL_TEST_.
_OF_A_CHECKOUT = ("CI_PYTHONS", "GPU_COMPILER", "MPI", "PYTHON", "WHEEL")
# libnccl.so.2 reads these (cc/nccl/interface/settings.cc).
_OF_NCCL = ("NCCL_HOSTS", "NCCL_LEVELS", "NCCL_LIBRARY", "NCCL_RANK_BYTES")


def known() -> set[str]:
    """Returns the names of all variables that jax_cxl or its tests read."""
    settings = (field.name.upper() for field in dataclasses.fields(configuration.Config))
    others = {each for each in vars(variables).values() if isinstance(each, str)}
    return {_PREFIX + name for name in (*settings, *_OF_A_CHECKOUT, *_OF_NCCL)} | {
        name for name in others if name.startswith(_PREFIX)
    }


def problems(environment: Mapping[str, str]) -> list[str]:
    """Returns a sentence about each unknown variable, with the nearest known name."""
    names = known()
    # Nobody sets the launcher's variables by hand.
    others = ("JAX_CXL_LAUNCH_", *(_PREFIX + name for name in _OF_A_CHECKOUT))
    settings = [name[len(_PREFIX) :] for name in names if not name.startswith(others)]
    found = []
    for name in sorted(environment):
        if not name.startswith(_PREFIX) or name in names or name.startswith("JAX_CXL_TEST_"):
            continue
        nearest = difflib.get_close_matches(name[len(_PREFIX) :], settings, n=1)
        hint = (
            f"did you mean {_PREFIX}{nearest[0]}?"
            if nearest
            else "docs/start/settings.md lists all"
        )
        found.append(f"jax_cxl does not know the environment variable {name}: {hint}")
    return found


@functools.cache
def warn() -> None:
    """Warns once about unknown variables of this process."""
    for problem in problems(os.environ):
        logging.getLogger("jax_cxl").warning("jax_cxl: warning: %s", problem)
