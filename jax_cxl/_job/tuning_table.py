"""The tuning table: values that change the speed, but not the results.

`python -m jax_cxl tune` measures a table. `JAX_CXL_TUNING` names the file that a job uses. Without
this variable a job uses the values in the library (cc/comm/call/tuning.h explains each).
"""

import json
import pathlib

from jax_cxl import _core, errors

# A field with this least size means that no size is large enough.
NEVER = 1 << 62


def table(tuning: _core.Tuning) -> dict[str, int]:
    """Returns the values of a tuning by name."""
    return {field: getattr(tuning, field) for field in _core.TUNING_FIELDS}


def make(values: dict[str, int]) -> _core.Tuning:
    """Returns the tuning with these values, and with built-in values for other names."""
    tuning = _core.Tuning()
    for name, value in values.items():
        if name not in _core.TUNING_FIELDS:
            raise ValueError(f"{name!r} is not one of {', '.join(_core.TUNING_FIELDS)}.")
        if not isinstance(value, int) or not 0 <= value < 2**63:
            raise ValueError(
                f"{name} is {value!r}, which is not a whole number from 0 to 2**63 - 1."
            )
        setattr(tuning, name, value)
    try:
        tuning.check()
    except errors.CxlError as error:
        raise ValueError(str(error)) from None
    return tuning


def load(path: str | None) -> _core.Tuning:
    """Reads a table that `python -m jax_cxl tune` wrote. None gives the built-in table."""
    if path is None:
        return _core.Tuning()
    try:
        return make(json.loads(pathlib.Path(path).read_text())["tuning"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"JAX_CXL_TUNING={path}: not a tuning table, which `python -m jax_cxl tune` writes:"
            f" {error}"
        ) from None
