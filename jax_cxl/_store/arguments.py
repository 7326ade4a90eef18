"""Checks the arguments of `jax_cxl.Snapshots`."""

import math
import operator
from typing import Any


def check_where(where: Any) -> None:
    """Raises TypeError if `where` is not a str."""
    if not isinstance(where, str):
        raise TypeError(f"where={where!r} must be a str, for example 'shm:my_run?size=1GiB'")


def check_keep(keep: Any) -> None:
    """Raises an error if `keep` is wrong."""
    if not 2 <= whole("keep", keep) < 1 << 16:
        raise ValueError(
            f"keep={keep} must be from 2 to 65535: how many versions are kept while another"
            " is saved"
        )


def check_parity(parity: Any) -> None:
    """Raises an error if `parity` is wrong."""
    if whole("parity", parity) not in (0, 1):
        raise ValueError(f"parity={parity} must be 0, or 1 for one device of parity in each row")


def check_paths(parity: int, paths: Any) -> None:
    """Raises an error if a number of paths is wrong."""
    if whole("paths", paths) < 1 + parity:
        raise ValueError(f"paths={paths} must be at least {1 + parity} with parity={parity}")


def number(what: str, value: Any) -> int:
    """Returns a step or a version as an int, if it is valid."""
    number = whole(what, value)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{what}={number} must be at least 0, and less than 2**63")
    return number


def check_grows(what: str, number: int, previous: int) -> None:
    """Raises an error if a step or a version is not greater than that of the previous save."""
    if number <= previous:
        back = (
            "To go back, call restore first" if what == "step" else "Omit it to take the next one"
        )
        raise ValueError(
            f"{what}={number} must be greater than {previous}, the {what} of the previous save: two"
            f" trees of one {what} could not be told apart. {back}"
        )


def timeout(value: Any) -> float | None:
    """Returns a timeout in seconds, if it is valid; None for the default."""
    if value is None:
        return None
    if isinstance(value, bool | str | bytes):
        raise TypeError(f"timeout={value!r} must be a number of seconds, or None")
    try:
        seconds = float(value)
    except TypeError:
        raise TypeError(f"timeout={value!r} must be a number of seconds, or None") from None
    if math.isnan(seconds) or seconds < 0:
        raise ValueError(f"timeout={value!r} must be at least 0 seconds")
    return seconds


def check_bool(name: str, value: Any) -> None:
    """Raises an error if an argument is not a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False")


def whole(name: str, value: Any) -> int:
    """Returns an argument as an int."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name}={value!r} must be an int, not {type(value).__name__}")
