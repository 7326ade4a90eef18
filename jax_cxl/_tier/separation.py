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

from jax_cxl._tier import dataflow
from jax_cxl._tier.dataflow import Constant, Dataflow, Operand

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
    scalars: tuple[int, ...]
    uses: Mapping[int, int]


def separate(update: Dataflow, num_params: int, resident_params: bool) -> Separation:
    """Separates an update from parameters, gradients and state to new parameters and state.

    The parameters may be `resident`: in the devices' memory when the update begins.
    """
    num_state = update.num_inputs - 2 * num_params
    small = [update.avals[2 * num_params + n] for n in range(num_state)]
    shared = {n for n, aval in enumerate(small) if math.prod(aval.shape) <= _SMALL}
    while True:
        found = _Dependencies(update, num_params, shared, resident_params)
        of_outputs = [found.of_output(output) for output in update.outputs]
        depending = {n for n in shared if of_outputs[num_params + n]}
        if not depending:
            break
        shared -= depending
    # Nodes are parameters, and then leaves of the state.
    leader = list(range(num_params + num_state))

    def lead(node: int) -> int:
        while leader[node] != node:
            leader[node] = node = leader[leader[node]]
        return node

    for node, others in enumerate(of_outputs):
        for other in others:
            a, b = sorted((lead(node), lead(other)))
            leader[b] = a
    members: dict[int, list[int]] = {}
    for node in range(num_params + num_state):
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
        operand
        for operands in (*(each.operands for each in update.equations), update.outputs)
        for operand in operands
        if isinstance(operand, int)
    )
    scalars = tuple(sorted(found.scalars))
    return Separation(update, num_params, parts, tuple(sorted(shared)), scalars, uses)


class _Dependencies:
    """Which parameters and state each variable depends on; `scalars` are to be computed first."""

    def __init__(self, update: Dataflow, num_params: int, shared: set[int], resident_params: bool):
        self.scalars: set[int] = set()
        self._update = update
        self._of: list[frozenset[int]] = [frozenset()] * len(update.avals)
        self._resident = [True] * len(update.avals)
        for n in range(update.num_inputs):
            state = n - 2 * num_params
            if state in shared:
                continue
            node = n % num_params if state < 0 else num_params + state
            self._of[n] = frozenset((node,))
            self._resident[n] = state < 0 and (resident_params or n >= num_params)
        for each in update.equations:
            operands = [operand for operand in each.operands if isinstance(operand, int)]
            resident = all(self._resident[operand] for operand in operands)
            scalar = all(_is_scalar(update.avals[result]) for result in each.results)
            if resident and scalar:
                nodes = frozenset().union(*(self._of[operand] for operand in operands))
            else:
                nodes = frozenset().union(*map(self.of_output, operands))
            for result in each.results:
                self._of[result], self._resident[result] = nodes, resident

    def of_output(self, operand: Operand) -> frozenset[int]:
        """Returns what a value depends on.

        If the value is a scalar that can be computed first, it is added to `scalars`. It then
        counts as independent, because each part gets it as an input.
        """
        if isinstance(operand, Constant):
            return frozenset()
        nodes = self._of[operand]
        computed = operand >= self._update.num_inputs and self._resident[operand]
        if computed and len(nodes) != 1 and _is_scalar(self._update.avals[operand]):
            self.scalars.add(operand)
            return frozenset()
        return nodes


def _is_scalar(aval: Any) -> bool:
    return math.prod(getattr(aval, "shape", (2,))) == 1


def slice_part(of: Separation, params: Sequence[int], state: Sequence[int]) -> dataflow.Slice:
    """Returns the program for some parameters and leaves of the state.

    The program returns these parameters and leaves. After them it returns scalars that it uses, so
    that XLA compiles it like the whole update.
    """
    outputs = [of.update.outputs[n] for n in params]
    outputs += [of.update.outputs[of.num_params + n] for n in state]
    made = dataflow.slice_of(of.update, outputs, of.scalars)
    again = tuple(n for n in made.inputs if n in of.scalars and of.uses[n] > 1)
    return dataclasses.replace(made, outputs=(*made.outputs, *again))
