"""griffe extensions that change how mkdocstrings shows docstrings."""

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import griffe

# griffe shows a section `Example:` as a quotation, but a section `Examples:` as code.
_EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)


class ExamplesAreCode(griffe.Extension):
    """Renames sections `Example:` to `Examples:`, which griffe shows as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)


class SharedDocumentation(griffe.Extension):
    """Shows docstrings as the decorator `documented` has completed them, not as in the source."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if any(str(each.value).startswith("documented(") for each in func.decorators):
            function = getattr(importlib.import_module(func.module.path), func.name)
            shown = _described(func.name, function, func.module)
            func.docstring, func.parameters = shown.docstring, shown.parameters


def _described(name: str, function: Callable, parent: griffe.Module) -> griffe.Function:
    """Returns what griffe would return for `function` if the function were in the source."""
    signature = inspect.signature(function)
    parameters = (
        griffe.Parameter(
            each.name,
            annotation=_annotation(each.annotation),
            kind=griffe.ParameterKind(each.kind.description),
            default=None if each.default is each.empty else repr(each.default),
        )
        for each in signature.parameters.values()
    )
    described = griffe.Function(
        name,
        parameters=griffe.Parameters(*parameters),
        returns=_annotation(signature.return_annotation),
        parent=parent,
    )
    text = _EXAMPLE.sub(r"\1Examples:", inspect.getdoc(function) or "")
    described.docstring = griffe.Docstring(text, parser="google", parent=described)
    return described


def _annotation(annotation: Any) -> str | None:
    empty = annotation is inspect.Signature.empty
    return None if empty else inspect.formatannotation(annotation).replace("collections.abc.", "")
