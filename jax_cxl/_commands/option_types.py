"""Parsers of commands, and types of their arguments. Error messages say what would be correct."""

import argparse
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

from jax_cxl._nccl import library

_T = TypeVar("_T")


def command(name: str, description: str, **options: Any) -> argparse.ArgumentParser:
    """Returns a parser for `python -m jax_cxl NAME`."""
    return library.command_parser(f"python -m jax_cxl {name}", description, **options)


def whole_number(least: int) -> Callable[[str], int]:
    """Returns a type for whole numbers that are at least `least`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {number}")
        return number

    return parse


def add_number(
    parser: argparse.ArgumentParser,
    name: str,
    least: int,
    what: str,
    default: int | None = None,
    metavar: str = "N",
) -> None:
    """Adds an option for a whole number that is at least `least`."""
    if default is not None:
        what += f" (default: {default})"
    parser.add_argument(name, type=whole_number(least), default=default, metavar=metavar, help=what)


def seconds(text: str) -> float:
    """Parses a time in seconds, finite and not negative."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be finite and not negative: {text}")
    return value


def telling(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Returns an argparse type that calls `parse`, and shows users the text of its ValueError."""

    def checked(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def folder(text: str) -> pathlib.Path:
    """Parses the path of an existing folder in which this user may write."""
    path = pathlib.Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}; create it")
    if not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"you cannot write to {text}; name another folder")
    return path


def output_file(text: str) -> pathlib.Path:
    """Parses the path of a file that can be written, in an existing folder."""
    path = pathlib.Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    folder(str(path.absolute().parent))
    return path
