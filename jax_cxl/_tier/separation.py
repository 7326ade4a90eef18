"""Separates the update of an optimizer into parts that do not depend on each other.

Most optimizers treat each parameter by itself. But there are two kinds of values that all parts may
need. The first kind are small leaves of the state that depend on no parameter, such as the count of
steps. The second kind are scalars that depend only on values in the devices' memory, such as the
norm of all gradients. These scalars are computed first, by a program of their own.

A part has exactly the operations of the whole update. For results with the same bits, XLA also has
to compile these operations in the same way. If a program uses a scalar only once, XLA multiplies by
its reciprocal instead of dividing by it. The whole update uses a scalar once for each parameter. So
the program of a part also returns its scalars, which counts as a second use.
"""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax_cxl._compat.tracing import Literal, Var
from jax_cxl._tier import dataflow
from jax_cxl._tier.dataflow import Dataflow

_SMALL = 1024  # The most elements of a leaf that stays in the devices' memory.


@dataclasses.dataclass(frozen=True)
class Part:
    """Parameters and leaves of the state that depend on each other.

    They depend on nothing else, except shared leaves and scalars.
    """

    params: tuple[int, ...]
    state: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Separation:
    """An update, separated.

    Attributes:
      update: the equations. The inputs are parameters, gradients and leaves of the state; the
        outputs are parameters and leaves of the state.
      shared: leaves of the state that all parts need.
      scalars: variables that are computed first.
    """

    update: Dataflow
    num_params: int
    parts: tuple[Part, ...]
    shared: tuple[int, ...]
    scalars: tuple[Var, ...]
    uses: Mapping[Var, int]


def separate(update: Dataflow, num_params: int, resident_params: bool) -> Separation:
    """Separates an update from parameters, gradients and state to new parameters and state.

    The parameters may be `resident`: in the devices' memory when the update begins.
    """
    state: Sequence[Any] = update.inputs[2 * num_params :]
    shared = {n for n, leaf in enumerate(state) if math.prod(leaf.aval.shape) <= _SMALL}
    while True:
        of_outputs, scalars = _dependencies(update, num_params, shared, resident_params)
        depending = {n for n in shared if of_outputs[num_params + n]}
        if not depending:
            break
        shared -= depending
    # Nodes are parameters, and then leaves of the state.
    leader = list(range(num_params + len(state)))

    def lead(node: int) -> int:
        while leader[node] != node:
            leader[node] = node = leader[leader[node]]
        return node

    for node, others in enumerate(of_outputs):
        for other in others:
            a, b = sorted((lead(node), lead(other)))
            leader[b] = a
    members: dict[int, list[int]] = {}
    for node in range(len(leader)):
        if node - num_params not in shared:
            members.setdefault(lead(node), []).append(node)
    parts = tuple(
        Part(
            tuple(node for node in nodes if node < num_params),
            tuple(node - num_params for node in nodes if node >= num_params),
        )
        for _, nodes in sorted(members.items())
    )
    uses = collections.Counter(
        variable
        for operands in (*(each.invars for each in update.equations), update.outputs)
        for variable in dataflow.variables(operands)
    )
    return Separation(update, num_params, parts, tuple(sorted(shared)), scalars, uses)


def _dependencies(
    update: Dataflow, num_params: int, shared: set[int], resident_params: bool
) -> tuple[list[frozenset[int]], tuple[Var, ...]]:
    """Returns which parameters and state each output depends on, and the scalars to compute first.

    Such a scalar counts as independent, because each part gets it as an input.
    """
    nodes_of: dict[Var, frozenset[int]] = {}
    is_resident: dict[Var, bool] = {}
    scalars: dict[Var, None] = {}  # in an order that is the same on all processes

    def outside(operand: Var | Literal) -> frozenset[int]:
        """Returns what a value depends on, and notes it if it is a scalar to compute first."""
        if isinstance(operand, Literal):
            return frozenset()
        nodes = nodes_of[operand]
        computed = operand in update.producers and is_resident[operand]
        if computed and len(nodes) != 1 and _is_scalar(operand):
            scalars[operand] = None
            return frozenset()
        return nodes

    for n, variable in enumerate(update.inputs):
        state = n - 2 * num_params
        node = n % num_params if state < 0 else num_params + state
        nodes_of[variable] = frozenset() if state in shared else frozenset((node,))
        is_resident[variable] = (
            state in shared if state >= 0 else resident_params or n >= num_params
        )
    for each in update.equations:
        operands = list(dataflow.variables(each.invars))
        resident = all(is_resident[operand] for operand in operands)
        scalar = all(map(_is_scalar, each.outvars))
        of = nodes_of.__getitem__ if resident and scalar else outside
        nodes = frozenset[int]().union(*map(of, operands))
        for result in each.outvars:
            nodes_of[result], is_resident[result] = nodes, resident
    return [outside(output) for output in update.outputs], tuple(scalars)


def _is_scalar(variable: Any) -> bool:
    return math.prod(getattr(variable.aval, "shape", (2,))) == 1


def slice_part(of: Separation, params: Sequence[int], state: Sequence[int]) -> Dataflow:
    """Returns the program for some parameters and leaves of the state.

    The program returns these parameters and leaves. After them it returns scalars that it uses, so
    that XLA compiles it like the whole update.
    """
    outputs = [of.update.outputs[n] for n in params]
    outputs += [of.update.outputs[of.num_params + n] for n in state]
    made = dataflow.slice_of(of.update, outputs, of.scalars)
    again = tuple(n for n in made.inputs if n in of.scalars and of.uses[n] > 1)
    return dataclasses.replace(made, outputs=(*made.outputs, *again))
