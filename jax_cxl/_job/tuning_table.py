"""The tuning table: values that change the speed, but not the results.

`python -m jax_cxl tune` measures a table. `JAX_CXL_TUNING` names the file that a job uses. Without
this variable a job uses the values in the library (cc/comm/call/tuning.h explains each).
"""

import pathlib

from jax_cxl import _core, errors

# A field with this least size means that no size is large enough.
NEVER = 1 << 62


def table(tuning: _core.Tuning) -> dict[str, int]:
    """Returns the values of a tuning by name."""
    return {field: getattr(tuning, field) for field in _core.TUNING_FIELDS}


def load(path: str | None) -> _core.Tuning:
    """Reads a table that `python -m jax_cxl tune` wrote. None gives the built-in table."""
    if path is None:
        return _core.Tuning()
    try:
        return _core.parse_tuning(pathlib.Path(path).read_text())
    except (OSError, ValueError, errors.CxlError) as error:
        raise ValueError(f"JAX_CXL_TUNING={path}: {error}") from None
