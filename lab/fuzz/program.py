"""A program: its computation, its devices, and the results of NumPy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lab.fuzz.meshes import Mesh

Arrays = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Input:
    """An argument of a program.

    Attributes:
      make: returns random values of the argument.
      spec: how the argument is sharded.
    """

    make: Callable[[np.random.Generator], np.ndarray]
    spec: jax.P


@dataclasses.dataclass(frozen=True)
class Program:
    """A random program.

    Attributes:
      text: what it does.
      mesh: the mesh that it runs on.
      inputs: its arguments.
      function: a jitted function.
      oracle: computes the results of `function` with NumPy.
      exact: whether results have to agree in every bit.
      alone: the same computation on one device, or None if it needs several devices.
      needs_shardy: whether only the partitioner Shardy can compile it, and the older GSPMD cannot.
    """

    text: str
    mesh: Mesh
    inputs: list[Input]
    function: Callable[..., Any]
    oracle: Callable[[Arrays], Arrays]
    exact: bool
    alone: Callable[..., Any] | None = None
    needs_shardy: bool = False

    def place(self, values: Arrays) -> list[jax.Array]:
        """Returns the values of all inputs as JAX arrays, sharded as the inputs are."""
        return [
            jax.make_array_from_callback(
                value.shape, self.mesh.sharding(i.spec), lambda at, value=value: value[at]
            )
            for value, i in zip(values, self.inputs, strict=True)
        ]
