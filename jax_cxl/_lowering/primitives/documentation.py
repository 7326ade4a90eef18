"""Docstrings that several functions share."""

from collections.abc import Callable
from typing import Any


def documented(text: str, **words: str) -> Callable[[Any], Any]:
    """Returns a decorator that gives a function a docstring.

    Args:
      text: the docstring, with fields in braces. `{name}` is the name of the function.
      **words: the other fields. They may contain fields themselves.
    """

    def document(function):
        fields = {"name": function.__name__, **words}
        filled = {field: word.format(**fields) for field, word in fields.items()}
        function.__doc__ = text.format(**filled)
        return function

    return document
