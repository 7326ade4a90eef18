"""The tuning table: what the speed of the CPU engine depends on, and no result does.

`python -m jax_cxl tune` measures one; `JAX_CXL_TUNING` names the file that a job uses. Without it
the values are those built into the library (cc/comm/tuning.h says what each is).
"""

import json
import pathlib

from jax_cxl import _compat, _core, errors

FIELDS = ("slot_bytes", "num_slots", "inline_bytes", "all_read_bytes", "past_caches_bytes")


def table(tuning: _core.Tuning) -> dict[str, int]:
    """The values by name."""
    return {field: getattr(tuning, field) for field in FIELDS}


def make(values: dict[str, int]) -> _core.Tuning:
    """Returns the tuning with these values, and the built-in ones for others.

    Raises:
      ValueError: an unknown name, or a value out of range.
    """
    tuning = _core.Tuning()
    for name, value in values.items():
        if name not in FIELDS:
            raise ValueError(f"{name!r} is not one of {', '.join(FIELDS)}.")
        if not isinstance(value, int) or not 0 <= value < 2**63:
            raise ValueError(f"{name} is {value!r}, not a whole number.")
        setattr(tuning, name, value)
    try:
        tuning.check()
    except errors.CxlError as error:
        raise ValueError(str(error)) from None
    return tuning


def load(path: str | None) -> _core.Tuning:
    """Reads a table that `python -m jax_cxl tune` wrote; None gives the built-in one.

    Raises:
      ValueError: there is no such file, or it is no table.
    """
    if path is None:
        return _core.Tuning()
    try:
        return make(json.loads(pathlib.Path(path).read_text())["tuning"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"JAX_CXL_TUNING={path}: not a tuning table: {error}") from None


def agree(tuning: _core.Tuning, meeting: str, process: int, first: int = 0) -> None:
    """Checks that all processes have the table of the first; one has another, and raises.

    Raises:
      MismatchError: the tables differ.
    """
    client = _compat.coordination_client()
    mine = table(tuning)
    key = f"{meeting}/tuning"
    if process == first:
        # A successor of process 0 finds its predecessor's.
        client.key_value_set(key, json.dumps(mine), allow_overwrite=True)
        return
    theirs = json.loads(client.blocking_key_value_get(key, _compat.MEETING_TIMEOUT_MS))
    if theirs == mine:
        return
    differ = ", ".join(
        f"{name} is {mine.get(name)} here and {theirs.get(name)} on process {first}"
        for name in sorted(theirs.keys() | mine.keys())
        if theirs.get(name) != mine.get(name)
    )
    raise errors.MismatchError(
        f"process {process} has another tuning table than process {first}: {differ}; set"
        " JAX_CXL_TUNING to the same table on all processes"
    )
