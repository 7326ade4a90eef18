"""Splits the function of an operation in two: up to its collectives, and the rest.

For example, `all_gather(x, tiled=True)` is a collective and a reshape of its result, and `pmean` is
a collective and a division. The reshape and the division have to wait until the collective is
complete. So the function is traced separately, and its equations are evaluated in two parts.
"""

from collections.abc import Callable
from typing import Any

import jax

from jax_cxl import _compat
from jax_cxl._lowering.start_done import halves

# A collective under way: its xs, y and token (halves.py).
Pending = tuple[tuple, Any, Any]
# Results of the collectives, and other values -> results of the function.
Rest = Callable[[list[Any], list[Any]], Any]


def start(
    function: Callable, /, *args: Any, **kwargs: Any
) -> tuple[list[Pending], list[Any], Rest]:
    """Starts the collectives of a function, and evaluates all equations that do not need them.

    Arguments that are not traced are constants. Returns the collectives under way; other values
    that the rest of the function needs; and the rest, which takes the results of the collectives
    and these other values.
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)]
    shape_of_result: list[Any] = []

    def flat(*values):
        filled = list(leaves)
        for i, value in zip(traced, values, strict=True):
            filled[i] = value
        args, kwargs = jax.tree.unflatten(structure, filled)
        results, tree = jax.tree.flatten(function(*args, **kwargs))
        shape_of_result.append(tree)
        return results

    closed = jax.make_jaxpr(flat)(*(leaves[i] for i in traced))
    (tree,) = shape_of_result
    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known |= zip(jaxpr.invars, (leaves[i] for i in traced), strict=True)

    pending, awaited, rest = [], [], []
    late: set[Any] = set()
    for equation in jaxpr.eqns:
        if any(isinstance(v, _compat.tracing.Var) and v in late for v in equation.invars):
            late.update(equation.outvars)
            rest.append(equation)
        elif halves.startable(equation):
            xs = tuple(read(known, v) for v in equation.invars)
            y, token = halves.start_p.bind(*xs, collective=equation.primitive, **equation.params)
            pending.append((xs, y, token))
            awaited.append(equation.outvars[0])
            late.add(equation.outvars[0])
        else:
            evaluate(known, equation)

    needed = [v for equation in rest for v in equation.invars] + list(jaxpr.outvars)
    others = list(
        dict.fromkeys(v for v in needed if isinstance(v, _compat.tracing.Var) and v in known)
    )

    def finish(results, values):
        environment = dict(zip(awaited, results, strict=True))
        environment |= zip(others, values, strict=True)
        for equation in rest:
            evaluate(environment, equation)
        return jax.tree.unflatten(tree, [read(environment, v) for v in jaxpr.outvars])

    return pending, [known[v] for v in others], finish


def read(environment: dict[Any, Any], variable: Any) -> Any:
    """Returns the value of an operand of an equation."""
    return variable.val if isinstance(variable, _compat.tracing.Literal) else environment[variable]


def evaluate(environment: dict[Any, Any], equation: Any) -> None:
    """Evaluates an equation, and adds the values of its results to the environment."""
    operands = [read(environment, v) for v in equation.invars]
    primitive = equation.primitive
    out = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    results = out if primitive.multiple_results else [out]
    environment.update(zip(equation.outvars, results, strict=True))
