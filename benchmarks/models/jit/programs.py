"""The programs that jit_training.py measures."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import training
from train_jit import JitTrainer


@dataclasses.dataclass
class Program:
    """A jitted training step.

    Attributes:
      name: its name in the results.
      step: the jitted function (state, *arguments) -> (state, loss). It may donate the state.
      state: the state before the first step.
      arguments: further arguments, the same in every step.
      calls: how many steps one measurement makes.
    """

    name: str
    step: Any
    state: Any
    arguments: tuple
    calls: int


def data_parallel(layers: int, width: int, rows: int) -> Program:
    """Returns a step of `layers` dense layers, whose gradients are summed over all devices."""
    mesh = _mesh()

    def place(value: np.ndarray, *axes: str) -> jax.Array:
        sharding = jax.NamedSharding(mesh, jax.P(*axes))
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, np.float32)

    def loss(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean((x - y) ** 2)

    @jax.jit
    def step(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    generator = np.random.default_rng(0)
    weights = [place(normal(width, width) / width**0.5) for _ in range(layers)]
    batch = tuple(place(normal(rows * mesh.size, width), "data") for _ in range(2))
    return Program("data_parallel", step, weights, batch, 20)


def example() -> Program:
    """Returns the step of examples/train_jit.py, with the sizes of its flags."""
    sizes, dtype, optimizer = training.model()
    trainer = JitTrainer(sizes, dtype, optimizer)
    tokens = training.batch(trainer, training.load_corpus(), 1)
    calls = 2 if jax.default_backend() == "cpu" else 8
    return Program("example", trainer.step, trainer.init(0), (tokens,), calls)


def without_collectives(width: int) -> Program:
    """Returns a step of dense layers on one device."""

    def loss(layers: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in layers:
            x = jax.nn.softmax(jnp.tanh(x @ w))
        return jnp.sum(x)

    matrix = jnp.ones((width, width))
    step = jax.jit(jax.value_and_grad(loss))
    return Program("without_collectives", step, [matrix] * 16, (matrix,), 1)


# For each name: maps the operand of a rank to its result. The axis "data" has all devices.
_COLLECTIVES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "psum": lambda x: jax.lax.psum(x, "data"),
    "all_gather": lambda x: jax.lax.all_gather(x, "data", tiled=True),
    "psum_scatter": lambda x: jax.lax.psum_scatter(x, "data", tiled=True),
}


def communication(name: str, of: Mapping[str, tuple[int, int]]) -> Program:
    """Returns a program that runs only collectives, one after another.

    Args:
      name: the name of the program.
      of: maps the name of a function of jax.lax to the number of calls, and to the bytes of the
        operands of all these calls.

    Raises:
      ValueError: `of` has a function that this module cannot call.
    """
    if unknown := of.keys() - _COLLECTIVES.keys():
        raise ValueError(
            f"{', '.join(sorted(unknown))} cannot run alone, only {', '.join(_COLLECTIVES)} can"
        )
    mesh = _mesh()
    shard = functools.partial(jax.shard_map, mesh=mesh, in_specs=jax.P("data"), check_vma=False)

    @jax.jit
    @functools.partial(shard, out_specs=jax.P("data"))
    def step(operands: dict[str, jax.Array]) -> Any:
        total = jnp.zeros((1,), jnp.float32)
        for function, (calls, _) in of.items():
            operand = operands[function]
            for _ in range(calls):
                # The barrier makes the next collective wait for this one.
                result = _COLLECTIVES[function](operand)
                total, operand = jax.lax.optimization_barrier((total + result[0], operand))
        return operands, total

    def ones(calls: int, total_bytes: int) -> jax.Array:
        each = max(total_bytes // calls // 4 // mesh.size, 1) * mesh.size
        sharding = jax.NamedSharding(mesh, jax.P("data"))
        return jax.device_put(np.ones(each * mesh.size, np.float32), sharding)

    operands = {function: ones(*sizes) for function, sizes in of.items()}
    return Program(name, step, operands, (), 4)


def _mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.asarray(jax.devices()), ("data",))
