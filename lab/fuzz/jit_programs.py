"""Random programs of whole arrays, in which XLA's partitioner places the collectives."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from lab.fuzz import meshes, operations, sums, values
from lab.fuzz.meshes import Mesh
from lab.fuzz.operations import Apply, Draw
from lab.fuzz.program import Input, Program

_LARGEST = 4096


@dataclasses.dataclass(frozen=True)
class _Step:
    """An operation, the numbers of the values that it takes, and the sharding of its result."""

    name: str
    apply: Apply
    operands: list[int]
    sharding: jax.NamedSharding | None


def random_program(rng: np.random.Generator, mesh: Mesh | None = None) -> Program:
    """Returns a random program, over a random mesh if none is given."""
    mesh = mesh or meshes.random_mesh(rng)
    exact = bool(rng.random() < 0.8)
    dtypes = values.DTYPES if exact else values.REAL_DTYPES
    made: list[np.ndarray] = []
    inputs: list[Input] = []
    places: list[int] = []
    steps: list[_Step] = []

    def new_input(dtype: np.dtype, shape: tuple[int, ...]) -> int:
        make = functools.partial(values.random, dtype=dtype, shape=shape, exact=exact)
        if dtype.kind in "ib":
            make = functools.partial(make, exact=True)
        inputs.append(Input(make, meshes.random_spec(rng, mesh.axes, shape, even=True)))
        places.append(len(made))
        made.append(make(np.random.default_rng(0)))
        return places[-1]

    for _ in range(int(rng.integers(1, 3))):
        shape = _random_shape(rng, list(mesh.axes.values()))
        new_input(dtypes[int(rng.integers(len(dtypes)))], shape)
    results: list[int] = []
    count = int(rng.integers(2, 8))
    while len(results) < count:
        # Choose the newest value most often, so that programs become long chains of operations.
        source = results[-1] if results and rng.random() < 0.6 else int(rng.integers(len(made)))
        draw = Draw(rng, made[source], exact)
        step = _random_step(draw)
        if step is None:
            continue
        name, apply = step
        extras = [values.random(np.random.default_rng(0), t, s, True) for t, s in draw.extras]
        result = np.asarray(apply(np, made[source], *extras))
        if not 0 < result.size <= _LARGEST:
            continue
        operands = [source, *(new_input(dtype, shape) for dtype, shape in draw.extras)]
        spec = meshes.random_spec(rng, mesh.axes, result.shape, even=bool(rng.random() < 0.7))
        sharding = mesh.sharding(spec) if rng.random() < 0.6 else None
        steps.append(_Step(name, apply, operands, sharding))
        results.append(len(made))
        made.append(result)
    outputs = [place for place in results[:-1] if rng.random() < 0.3] + results[-1:]
    specs = [meshes.random_spec(rng, mesh.axes, made[p].shape, even=True) for p in outputs]
    shardings = [mesh.sharding(spec) if rng.random() < 0.7 else None for spec in specs]
    run = functools.partial(_run, steps, places, outputs)
    text = f"jit over {mesh.text}: " + "; ".join(
        f"{step.name}({made[step.operands[0]].dtype}{list(made[step.operands[0]].shape)})"
        for step in steps
    )
    function = jax.jit(lambda *x: run(jnp, x), out_shardings=shardings)
    alone = functools.partial(_run, _without_shardings(steps), places, outputs)
    return Program(
        text, mesh, inputs, function, lambda x: run(np, x), exact, jax.jit(lambda *x: alone(jnp, x))
    )


def _without_shardings(steps: list[_Step]) -> list[_Step]:
    return [dataclasses.replace(step, sharding=None) for step in steps]


def _random_shape(rng: np.random.Generator, sizes: list[int]) -> tuple[int, ...]:
    """Returns a random shape. Some of its dimensions are multiples of a size in `sizes`."""
    shape = rng.choice(operations.DIMENSIONS, int(rng.integers(1, 4))).tolist()
    for dimension in range(len(shape)):
        multiple = shape[dimension] * sizes[int(rng.integers(len(sizes)))]
        if multiple <= 24 and rng.random() < 0.7:
            shape[dimension] = multiple
    return tuple(shape)


def _random_step(draw: Draw) -> "tuple[str, Apply] | None":
    """Returns a random operation and its name, or None if it does not work on the operand."""
    kind = draw.x.dtype.kind
    makers = operations.MOVING
    if draw.exact or kind in "ib":
        makers += operations.ORDERING if kind != "c" else (operations.truth,)
    if kind != "b":
        makers += sums.SUMMING
    maker = makers[draw.integer(0, len(makers))]
    if draw.x.ndim == 0:
        return None
    apply = maker(draw)
    return None if apply is None else (maker.__name__, apply)


def _run(steps, places, outputs, xp, arguments):
    """Executes the steps with `xp`: JAX (jnp) or NumPy. Returns the values `outputs`."""
    made = dict(zip(places, arguments, strict=True))
    number = 0
    for step in steps:
        while number in made:
            number += 1
        result = step.apply(xp, *(made[operand] for operand in step.operands))
        if xp is jnp and step.sharding is not None:
            result = jax.lax.with_sharding_constraint(result, step.sharding)
        made[number] = result if xp is jnp else np.asarray(result)
    return [made[place] for place in outputs]
