"""Random programs of jax.shard_map, fully or partially manual."""

import functools
import math

import jax
import numpy as np

import jax_cxl
from lab.fuzz import collectives, meshes, values
from lab.fuzz.meshes import Mesh
from lab.fuzz.program import Input, Program

_SIZES = (1, 2, 3, 4, 8)


def random_program(rng: np.random.Generator, mesh: Mesh | None = None) -> Program:
    """Returns a random program, over a random mesh if none is given.

    Along the manual axes, each device has an array of its own. The NumPy version works on all these
    arrays at once, stacked along the first dimension.
    """
    mesh = mesh or meshes.random_mesh(rng)
    names = list(mesh.axes)
    manual = [name for name in names if len(names) == 1 or rng.random() < 0.75] or names[:1]
    automatic = {name: size for name, size in mesh.axes.items() if name not in manual}
    dtype = values.DTYPES[int(rng.integers(len(values.DTYPES)))]
    shape = tuple(rng.choice(_SIZES, int(rng.integers(1, 4))).tolist())
    count = math.prod(mesh.axes[name] for name in manual)
    # The functions of jax.lax, or those of this package.
    module = jax.lax if rng.random() < 0.5 else jax_cxl
    steps = []
    example = np.zeros((count, *shape), dtype)
    for _ in range(int(rng.integers(1, 6))):
        axes = tuple(rng.permutation(manual)[: int(rng.integers(1, len(manual) + 1))].tolist())
        rows = _rows({name: mesh.axes[name] for name in manual}, axes)
        step = collectives.random_step(rng, example, axes, rows, module)
        if step is None or step.oracle(example).size > 1 << 14:
            continue
        spec = None
        example = step.oracle(example)
        if automatic and rng.random() < 0.5:
            spec = meshes.random_spec(rng, automatic, example.shape[1:], even=True)
        steps.append((step, spec))
    inner = meshes.random_spec(rng, automatic, shape, even=True)
    spec = jax.P(tuple(manual), *inner)
    make = functools.partial(values.random, dtype=dtype, shape=(count, *shape), exact=True)

    def body(x):
        x = x[0]
        for step, spec in steps:
            x = step.call(x)
            if spec is not None:
                x = jax.lax.with_sharding_constraint(x, spec)
        return x[None]

    def oracle(arguments):
        (x,) = arguments
        for step, _ in steps:
            x = step.oracle(x)
        return [x]

    function = _mapped(body, mesh, manual, check_vma=bool(rng.random() < 0.3))
    kind = f"shard_map({module.__name__}) manual over {manual} of"
    text = f"{kind} {mesh.text}: {dtype}{list(shape)} " + "; ".join(s.text for s, _ in steps)
    # GSPMD aborts the process if a gather is in a shard_map that is manual over only some axes.
    partial = bool(automatic)
    inputs = [Input(make, spec)]
    return Program(text, mesh, inputs, function, oracle, exact=True, needs_shardy=partial)


def _mapped(body, mesh: Mesh, manual: list[str], check_vma: bool):
    spec = jax.P(tuple(manual))
    mapped = jax.shard_map(
        body,
        mesh=mesh.mesh,
        in_specs=spec,
        out_specs=spec,
        axis_names=set(manual),
        check_vma=check_vma,
    )
    return jax.jit(lambda x: [mapped(x)])


def _rows(sizes: dict[str, int], axes: tuple[str, ...]) -> np.ndarray:
    """Returns a row for each group of a collective over `axes`: the positions of its members.

    Args:
      sizes: sizes of the manual axes. Positions count devices in the order of these axes.
      axes: the axes of the collective, which give the order of the members.
    """
    flat = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    order = [list(sizes).index(axis) for axis in axes]
    width = math.prod(sizes[axis] for axis in axes)
    return np.moveaxis(flat, order, range(len(order))).reshape(width, -1).T
