"""Finds which outputs of a function depend on which inputs, and computes some outputs only.

JAX traces the function once. The result is a list of equations. `slice_of` makes a slice of the
equations that some outputs need. So a slice computes these outputs exactly as the whole function
does.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from jax_cxl._compat.tracing import Literal, Var
from jax_cxl._lowering.start_done import split_function

# Calls that are replaced by their equations: the primitive -> its parameter that holds them.
_CALLS = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint"), "jaxpr"),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Dataflow:
    """A function as equations of JAX that can run in this order. None of them is a call."""

    inputs: tuple[Var, ...]
    outputs: tuple[Var | Literal, ...]
    equations: tuple[Any, ...]

    @functools.cached_property
    def producers(self) -> dict[Var, int]:
        """The position of the equation that defines each variable."""
        return {
            result: position
            for position, each in enumerate(self.equations)
            for result in each.outvars
        }

    def __call__(self, *values: Any) -> list[Any]:
        found = dict(zip(self.inputs, values, strict=True))
        for each in self.equations:
            split_function.evaluate(found, each)
        return [split_function.read(found, output) for output in self.outputs]

    def key(self) -> Any:
        """Returns a key that functions share if they compute the same from their inputs."""
        numbers = {variable: n for n, variable in enumerate(self.inputs)}
        for each in self.equations:
            for result in each.outvars:
                numbers[result] = len(numbers)

        def of(operand: Var | Literal) -> Any:
            if isinstance(operand, Var):
                return numbers[operand]
            return "constant", _identity(operand.val)

        equations = tuple(
            (
                each.primitive.name,
                tuple((name, _identity(value)) for name, value in sorted(each.params.items())),
                tuple(map(of, each.invars)),
            )
            for each in self.equations
        )
        return equations, tuple(map(of, self.outputs)), len(self.inputs)


def trace(function: Callable[..., Any], *arguments: Any) -> tuple[Dataflow, Any]:
    """Traces a function of trees of `jax.ShapeDtypeStruct`; returns it, and its result likewise.

    The inputs of the equations are the leaves of all arguments.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    if closed.effects:
        raise TypeError(
            f"the optimizer has side effects ({', '.join(map(str, closed.effects))}), such as those"
            " of jax.debug.print. Remove them: they would be repeated for each group of parameters"
        )
    equations: list[Any] = []
    inputs = closed.jaxpr.invars
    outputs = _inline(closed.jaxpr, closed.consts, inputs, equations)
    return Dataflow(tuple(inputs), tuple(outputs), tuple(equations)), shapes


def _inline(
    jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any], equations: list[Any]
) -> list[Any]:
    """Adds equations, with those of called functions in place of the calls; returns the outputs."""
    known = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= {
        var: Literal(value, var.aval) for var, value in zip(jaxpr.constvars, constants, strict=True)
    }

    def operand(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else known[atom]

    for each in jaxpr.eqns:
        operands = list(map(operand, each.invars))
        called = each.params.get(_CALLS.get(each.primitive.name, ""))
        if called is not None:
            inner = getattr(called, "jaxpr", called)
            results = _inline(inner, getattr(called, "consts", ()), operands, equations)
        else:
            # A function may be called twice, so each call needs variables of its own.
            results = [Var(var.aval) for var in each.outvars]
            equations.append(each.replace(invars=operands, outvars=results))
        known |= zip(each.outvars, results, strict=True)
    return [operand(atom) for atom in jaxpr.outvars]


def _identity(value: Any) -> Any:
    """Returns a key that is equal only for equal values."""
    if isinstance(value, bool | int | float | str | type(None)):
        return type(value), repr(value)
    if getattr(value, "shape", None) == () and hasattr(value, "dtype"):
        return str(value.dtype), repr(value)
    if isinstance(value, tuple):
        return tuple(map(_identity, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def slice_of(
    whole: Dataflow, outputs: Iterable[Var | Literal], known: Sequence[Var] = ()
) -> Dataflow:
    """Returns the slice that computes outputs or variables from inputs and `known` variables."""
    outputs = tuple(outputs)
    given = dict.fromkeys((*whole.inputs, *known))
    needed: set[int] = set()
    inputs: set[Var] = set()
    left = list(variables(outputs))
    while left:
        variable = left.pop()
        if variable in given:
            inputs.add(variable)
        elif (position := whole.producers[variable]) not in needed:
            needed.add(position)
            left += variables(whole.equations[position].invars)
    kept = tuple(whole.equations[position] for position in sorted(needed))
    return Dataflow(tuple(each for each in given if each in inputs), outputs, kept)


def variables(operands: Iterable[Var | Literal]) -> Iterator[Var]:
    """Yields the operands that are variables."""
    return (operand for operand in operands if isinstance(operand, Var))
