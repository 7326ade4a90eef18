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

from jax_cxl import _compat

# Calls that are replaced by their equations: the primitive -> its parameter that holds them.
_CALLS = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint"), "jaxpr"),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
}


@dataclasses.dataclass(frozen=True)
class Constant:
    """A value that does not depend on an input."""

    value: Any


Operand = int | Constant  # An int is the number of a variable.


@dataclasses.dataclass(frozen=True)
class Equation:
    """An operation, and the numbers of the variables that it defines."""

    primitive: Any
    params: dict[str, Any]
    operands: tuple[Operand, ...]
    results: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Dataflow:
    """A function as equations that can run in this order. The first variables are its inputs."""

    num_inputs: int
    outputs: tuple[Operand, ...]
    equations: tuple[Equation, ...]
    avals: tuple[Any, ...]

    @functools.cached_property
    def producers(self) -> dict[int, int]:
        """The position of the equation that defines each variable."""
        return {
            result: position
            for position, each in enumerate(self.equations)
            for result in each.results
        }


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
    tracer = _Inliner()
    inputs = [tracer.variable(var.aval) for var in closed.jaxpr.invars]
    outputs = tracer.inline(closed.jaxpr, closed.consts, inputs)
    made = Dataflow(len(inputs), tuple(outputs), tuple(tracer.equations), tuple(tracer.avals))
    return made, shapes


class _Inliner:
    """Collects equations, and puts those of called functions in place of the calls."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.avals: list[Any] = []

    def variable(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def inline(
        self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Operand]
    ) -> list[Operand]:
        known: dict[Any, Operand] = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= zip(jaxpr.constvars, map(Constant, constants), strict=True)

        def operand(atom: Any) -> Operand:
            return Constant(atom.val) if isinstance(atom, _compat.tracing.Literal) else known[atom]

        for each in jaxpr.eqns:
            operands = tuple(map(operand, each.invars))
            called = each.params.get(_CALLS.get(each.primitive.name, ""))
            if called is not None:
                inner = getattr(called, "jaxpr", called)
                results = self.inline(inner, getattr(called, "consts", ()), operands)
            else:
                results = [self.variable(var.aval) for var in each.outvars]
                made = tuple(result for result in results if isinstance(result, int))
                self.equations.append(Equation(each.primitive, each.params, operands, made))
            known |= zip(each.outvars, results, strict=True)
        return [operand(atom) for atom in jaxpr.outvars]


@dataclasses.dataclass(frozen=True)
class Slice:
    """The equations that some outputs of a function need."""

    inputs: tuple[int, ...]
    outputs: tuple[Operand, ...]
    equations: tuple[Equation, ...]

    def __call__(self, *values: Any) -> list[Any]:
        """Computes the outputs from the values of the inputs."""
        found = dict(zip(self.inputs, values, strict=True))

        def read(operand: Operand) -> Any:
            return operand.value if isinstance(operand, Constant) else found[operand]

        for each in self.equations:
            params = each.primitive.get_bind_params(each.params)
            result = each.primitive.bind(*map(read, each.operands), **params)
            results = result if each.primitive.multiple_results else [result]
            found |= zip(each.results, results, strict=True)
        return [read(operand) for operand in self.outputs]

    def key(self) -> Any:
        """Returns a key that slices share if they compute the same from their inputs."""
        numbers = {variable: n for n, variable in enumerate(self.inputs)}
        for each in self.equations:
            for result in each.results:
                numbers[result] = len(numbers)

        def of(operand: Operand) -> Any:
            if isinstance(operand, int):
                return numbers[operand]
            return "constant", _identity(operand.value)

        equations = tuple(
            (
                each.primitive.name,
                tuple((name, _identity(value)) for name, value in sorted(each.params.items())),
                tuple(map(of, each.operands)),
            )
            for each in self.equations
        )
        return equations, tuple(map(of, self.outputs)), len(self.inputs)


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


def slice_of(whole: Dataflow, outputs: Iterable[Operand], known: Iterable[int] = ()) -> Slice:
    """Returns the slice that computes outputs or variables from inputs and `known` variables."""
    outputs = tuple(outputs)
    stop = set(known)
    needed: set[int] = set()
    inputs: set[int] = set()
    left = list(_variables(outputs))
    while left:
        variable = left.pop()
        if variable in stop or variable < whole.num_inputs:
            inputs.add(variable)
        elif (position := whole.producers[variable]) not in needed:
            needed.add(position)
            left += _variables(whole.equations[position].operands)
    kept = tuple(whole.equations[position] for position in sorted(needed))
    return Slice(tuple(sorted(inputs)), outputs, kept)


def _variables(operands: Iterable[Operand]) -> Iterator[int]:
    return (operand for operand in operands if isinstance(operand, int))
