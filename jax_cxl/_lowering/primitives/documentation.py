"""Docstrings: what several functions share is written here once."""

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

# What parameters mean if a docstring does not describe them.
_PARAMETERS = {
    "x": "array, or pytree of arrays, of any dtype.",
    "axis_name": "mesh axis, or several in the order in which they count ranks.",
    "axis_index_groups": """\
lists of axis indices, all of the same size and together a partition of the axis.
    Each group runs the collective on its own. By default all ranks are one group.""",
    "root": "index of the root along the axis.",
    "levels": """\
True combines the data of each process before they go through the pool, False does not.
    None chooses the faster way for the size (docs/levels.md). GPUs have no levels.""",
}
# Errors of every function that has the parameter.
_ERRORS = {
    "x": ["TypeError: a dtype is not supported, such as float6_e2m3fn."],
    "axis_name": ["NameError: the axis is not bound, as outside `jax.shard_map`."],
    "axis_index_groups": ["ValueError: the groups are not a partition."],
    "root": [
        "NotImplementedError: the root is a traced value.",
        "ValueError: the root is out of bounds.",
    ],
    "levels": [
        """\
ValueError: `levels=True` between GPUs, or for groups that do not have the same number of ranks,
    at least two, in each process."""
    ],
}
_SECTIONS = ("Args", "Returns", "Raises", "Example")
_MESH = '  >>> mesh = jax_cxl.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))\n'


def documented(text: str | None = None, **words: str) -> Callable[[_Function], _Function]:
    """Returns a decorator that completes the docstring of a function.

    It adds parameters that the docstring leaves out, errors, and the mesh of the example. Several
    functions may share a `text` with fields in braces. `{name}` is the name of the function, and
    `words` are the other fields, which may contain fields themselves.
    """

    def document(function):
        own = function.__doc__
        if text is not None:
            fields = {"name": function.__name__, **words}
            filled = {field: word.format(**fields) for field, word in fields.items()}
            own = text.format(**filled)
        if own is not None:  # `python -OO` removes docstrings.
            function.__doc__ = _complete(inspect.cleandoc(own), inspect.signature(function))
        return function

    return document


def _complete(text: str, signature: inspect.Signature) -> str:
    parts = re.split(rf"^({'|'.join(_SECTIONS)}):\n", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    own = {each.partition(":")[0]: each for each in _entries(sections.get("Args", ""))}
    sections["Args"] = _section(
        own.get(name) or f"{name}: {_PARAMETERS[name]}" for name in signature.parameters
    )
    errors = _entries(sections.get("Raises", ""))
    errors += (error for name in signature.parameters for error in _ERRORS.get(name, ()))
    sections["Raises"] = _section(sorted(errors, key=lambda each: each.partition(":")[0]))
    if ">>> mesh" not in sections["Example"]:
        sections["Example"] = _MESH + sections["Example"]
    return parts[0] + "".join(f"{name}:\n{sections[name]}" for name in _SECTIONS)


def _entries(section: str) -> list[str]:
    return [each.strip() for each in re.split(r"^  (?=\w)", section, flags=re.MULTILINE) if each]


def _section(entries: Iterable[str]) -> str:
    return "".join(f"  {each}\n" for each in entries) + "\n"
