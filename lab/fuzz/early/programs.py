"""Random programs for GPUs: several random programs in one, loops, branches, and training."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lab.fuzz import jit_programs, manual_programs, meshes
from lab.fuzz.early.absent_gpus import SIDE_EFFECT
from lab.fuzz.meshes import Mesh
from lab.fuzz.program import Program

_WIDTHS = (64, 256, 1024, 2048)

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Whole:
    """A function to compile.

    Attributes:
      text: what it does.
      function: the function.
      arguments: shapes of its arguments.
      donated: which of its arguments are donated.
      options: options of XLA's compiler.
      devices: the devices of its mesh, in order.
    """

    text: str
    function: Function
    arguments: list[jax.ShapeDtypeStruct]
    donated: tuple[int, ...]
    options: dict[str, Any]
    devices: list[jax.Device]


def random_whole(rng: np.random.Generator, devices: list[jax.Device]) -> Whole:
    """Returns a random function that runs on a random mesh of some or all of `devices`."""
    mesh = meshes.random_mesh(rng, devices)
    parts, shapes, texts = [], [], []
    for _ in range(int(rng.integers(2, 5))):
        if rng.random() < 0.4:
            text, function, arguments = _training(rng, mesh)
        else:
            text, function, arguments = _random(rng, mesh)
        parts.append((function, len(shapes), len(shapes) + len(arguments)))
        shapes += arguments
        texts.append(text)
    donated = tuple(i for i in range(len(shapes)) if rng.random() < 0.6)
    mixed = bool(rng.random() < 0.5)

    def run(*arguments):
        outputs, carry = [], jnp.float32(0)
        for function, first, end in parts:
            given = arguments[first:end]
            if mixed:  # Each part waits for the parts before it.
                given = [_add(x, carry) for x in given]
            made = function(*given)
            outputs += made
            carry = carry + _number(made)
        return outputs, carry

    options: dict[str, Any] = {"xla_gpu_enable_latency_hiding_scheduler": True}
    if rng.random() < 0.7:
        kinds = "all_gather", "all_reduce", "reduce_scatter"
        options |= {f"xla_gpu_{kind}_combine_threshold_bytes": 1 for kind in kinds}
    if rng.random() < 0.5:
        options["xla_gpu_experimental_parallel_collective_overlap_limit"] = 4
    text = f"{mesh.text}: {' | '.join(texts)}"
    order = list(mesh.mesh.devices.flat)
    return Whole(text, run, shapes, donated, options, order)


def _number(made: Sequence[jax.Array]) -> jax.Array:
    return sum((jnp.mean(x != 0, dtype=jnp.float32) for x in made), jnp.float32(0))


def _add(x: jax.Array, number: jax.Array) -> jax.Array:
    """Returns x plus `number`, in the dtype of x.

    If x is bool, the result depends on `number`, but mostly equals x.
    """
    return x ^ (number > 9) if x.dtype == bool else x + number.astype(x.dtype)


def _random(rng: np.random.Generator, mesh: Mesh) -> tuple[str, Function, list]:
    """Returns a random program of fuzz_programs.py, as it is or in a loop, branch or checkpoint.

    The function returns the program's outputs, and then its inputs with changed values.
    """
    module = jit_programs if rng.random() < 0.7 else manual_programs
    program: Program = module.random_program(rng, mesh)
    shapes = [
        jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=mesh.sharding(i.spec))
        for i in program.inputs
        for value in [i.make(np.random.default_rng(0))]
    ]
    kind = ("plain", "loop", "branch", "checkpoint")[int(rng.integers(4))]
    called = bool(rng.random() < 0.3)

    def step(*arguments):
        outputs = program.function(*arguments)
        number = _number(outputs)
        if called:
            _side_effect(mesh, number)
        return outputs, [_add(x, number) for x in arguments]

    def run(*arguments):
        if kind == "loop":
            steps = jax.lax.fori_loop(0, 3, lambda _, x: step(*x)[1], list(arguments))
            return [*step(*steps)[0], *steps]
        if kind == "branch":
            holds = jnp.all(arguments[0] == 0)
            return jax.lax.cond(holds, lambda x: step(*x)[1], list, list(arguments))
        function = jax.checkpoint(step) if kind == "checkpoint" else step
        outputs, more = function(*arguments)
        return [*outputs, *more]

    return f"{kind} of {program.text}", run, shapes


def _side_effect(mesh: Mesh, x: jax.Array) -> None:
    call = jax.ffi.ffi_call(
        SIDE_EFFECT, jax.ShapeDtypeStruct((), jnp.float32), has_side_effect=True
    )
    whole = jax.P()
    jax.shard_map(call, mesh=mesh.mesh, in_specs=whole, out_specs=whole, check_vma=False)(x)


def _training(rng: np.random.Generator, mesh: Mesh) -> tuple[str, Function, list]:
    """Returns a training step of layers with sharded parameters: text, function, arguments.

    The function returns the loss, and then the new value of each array that the step changes.
    """
    width = int(rng.choice(_WIDTHS))
    count, scanned = int(rng.integers(2, 5)), bool(rng.random() < 0.4)
    checkpoint, momentum = rng.random() < 0.6, bool(rng.random() < 0.5)
    rows = int(rng.choice((8, 1024, 8192))) * 8 * 3
    # With bfloat16, the all-gather reads a converted copy of the parameter instead of the
    # parameter.
    dtype = jnp.float32 if rng.random() < 0.5 else jnp.bfloat16
    axes = tuple(mesh.axes)
    sharding = mesh.sharding(jax.P(axes if width % mesh.mesh.size == 0 else None))
    whole = mesh.sharding(jax.P())

    def layer(w, x):
        gathered = jax.lax.with_sharding_constraint(w.astype(dtype), whole)
        return x + jnp.tanh(x @ gathered.astype(x.dtype))

    layer = jax.checkpoint(layer) if checkpoint else layer

    def loss(weights, x):
        if scanned:
            x, _ = jax.lax.scan(lambda x, w: (layer(w, x), None), x, jnp.stack(weights))
        else:
            x = functools.reduce(lambda x, w: layer(w, x), weights, x)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def run(x, *arrays):
        weights, moments = arrays[:count], arrays[count:]
        value, gradients = jax.value_and_grad(loss)(list(weights), x)
        if momentum:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients))
            gradients = [0.9 * m + g / norm for m, g in zip(moments, gradients, strict=True)]
        weights = [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
        return [value, *weights, *(gradients if momentum else [])]

    matrix = jax.ShapeDtypeStruct((width, width), jnp.float32, sharding=sharding)
    batch = mesh.sharding(jax.P(axes if rows % mesh.mesh.size == 0 else None))
    x = jax.ShapeDtypeStruct((rows, width), jnp.bfloat16, sharding=batch)
    text = f"{count} layers of {width}, {rows} rows" + ", scanned" * scanned
    return text, run, [x] + [matrix] * (count * (1 + momentum))
