"""Checks that all processes have the settings that must be equal."""

import json
from typing import Any

from jax_cxl import _compat, _core, errors
from jax_cxl._job import setting, tuning_table, variables
from jax_cxl._job.meeting import arrival


def agree(tuning: _core.Tuning, meeting: str, process: int, first: int = 0) -> None:
    """Checks that this process has the same tuning table and early bytes as the first process.

    Raises:
      MismatchError: they differ.
      ValueError: `JAX_CXL_EARLY_BYTES` is malformed.
    """
    client = _compat.distributed.client()
    mine = tuning_table.table(tuning)
    early_bytes = setting.early_bytes()
    early = {variables.EARLY_BYTES: "off" if early_bytes is None else early_bytes}
    key = f"{meeting}/settings"
    if process == first:
        # A successor of process 0 overwrites the settings of its predecessor.
        client.key_value_set(key, json.dumps([mine, early]), allow_overwrite=True)
        return
    theirs, theirs_early = json.loads(
        arrival.wait_for_value(
            key,
            arrival.TIMEOUT_SECONDS,
            f"process {first} did not publish its tuning table",
        )
    )
    if theirs != mine:
        raise errors.MismatchError(
            f"process {process} has another tuning table than process {first}:"
            f" {_difference(mine, theirs, first)}. Set JAX_CXL_TUNING to the same table in all"
            " processes."
        )
    if theirs_early != early:
        raise errors.MismatchError(
            f"process {process} would start collectives in another order than process {first}:"
            f" {_difference(early, theirs_early, first)}. Set the same value in all processes."
        )


def _difference(mine: dict[str, Any], theirs: dict[str, Any], first: int) -> str:
    return ", ".join(
        f"{name} is {mine.get(name)} here and {theirs.get(name)} on process {first}"
        for name in sorted(theirs.keys() | mine.keys())
        if theirs.get(name) != mine.get(name)
    )
