"""The calls of jax_cxl in a lowered program."""

import re

_CALL = re.compile(r"(%\S+?)(?::\d+)? = stablehlo.custom_call @jax_cxl_(\w+)\(([^)]*)\)(.*)")


def calls(text: str) -> list[tuple[str, str, list[str], str]]:
    """Returns the calls in order: (name, result, operands, rest of the line)."""
    return [
        (name, result, operands.split(", "), rest)
        for result, name, operands, rest in _CALL.findall(text)
    ]
