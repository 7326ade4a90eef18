"""Compares collectives in levels with NumPy, bit by bit, over each subset of the axes of a mesh.

Runs under `python -m jax_cxl.launch`. `--mesh=2,4` makes a mesh of that shape, whose first axis
runs between the processes. All programs also run with `levels=False`, and `levels=True` has to be
refused if no process holds several ranks of a group.
"""

import dataclasses
import functools
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from matrix import reference
from matrix.levels import Model

import jax_cxl

_MESH = flags.DEFINE_list("mesh", ["2", "4"], "Shape of the mesh.")
_ALL = flags.DEFINE_bool("all", False, "All cells, instead of every dtype and transformation once.")

DTYPES = ("float32", "bfloat16", "int32", "float16", "complex64", "int4", "float8_e5m2")
LENGTH = 16  # of the dimension that ranks divide
# Operands with ODD rows have 45 elements, which no number of ranks divides.
ODD = 15


def _broadcast(x: Any, axis_name: Any, **options: Any) -> Any:
    return jax_cxl.broadcast(x, axis_name, root=lax.axis_size(axis_name) - 2, **options)


# Name -> (the call; how `expect` computes its transpose under check_vma, or "" if it has none;
# whether its operands have ODD rows).
OPERATIONS: dict[str, tuple[Callable, str, bool]] = {
    "psum": (jax_cxl.psum, "copy", True),
    "pmean": (jax_cxl.pmean, "divide", True),
    "pmax": (jax_cxl.pmax, "", True),
    "pmin": (jax_cxl.pmin, "", True),
    "pand": (jax_cxl.pand, "", True),
    "por": (jax_cxl.por, "", True),
    "psum_scatter": (functools.partial(jax_cxl.psum_scatter, tiled=True), "all_gather", False),
    "all_gather": (functools.partial(jax_cxl.all_gather, tiled=True), "psum_scatter", False),
    "all_to_all": (
        functools.partial(jax_cxl.all_to_all, split_axis=0, concat_axis=0, tiled=True),
        "all_to_all",
        False,
    ),
    "broadcast": (_broadcast, "reduce", True),
}
TRANSFORMATIONS = ("value", "grad", "vmap", "scan", "start, done")


@dataclasses.dataclass(frozen=True)
class Cell:
    operation: str
    dtype: str
    transformation: str

    def call(self, x: Any, axes: Any, levels: bool | None) -> Any:
        """Runs the cell on a rank's two values."""
        run, _, odd = OPERATIONS[self.operation]
        x = x[:, :ODD] if odd else x

        def collective(v):
            return run(v, axis_name=axes, levels=levels)

        if self.transformation == "grad":
            value, pull = jax.vjp(collective, x[0])
            return value, pull(collective(x[1]))[0]
        if self.transformation == "vmap":
            return jax.vmap(collective)(x)
        if self.transformation == "scan":
            return lax.scan(lambda c, v: (c, collective(v)), 0, x)[1]
        if self.transformation == "start, done" and self.operation != "broadcast":
            options = getattr(run, "keywords", {})
            operation = getattr(jax_cxl, self.operation)
            return jax_cxl.start(operation, x[0], axis_name=axes, levels=levels, **options).done()
        return collective(x[0])

    def expect(self, x: np.ndarray, model: Model) -> Any:
        """Returns the expected results of `call` on all ranks of a group, stacked.

        `x` has the two values of each rank.
        """
        _, transpose, odd = OPERATIONS[self.operation]
        x = x[:, :, :ODD] if odd else x
        first, second = (getattr(model, self.operation)(x[:, i]) for i in (0, 1))
        if self.transformation == "grad":
            if transpose == "copy":
                return first, second
            if transpose == "divide":
                return first, np.asarray(jnp.asarray(second) / len(x))
            return first, getattr(model, transpose)(second)
        if self.transformation in ("vmap", "scan"):
            return np.stack([first, second], axis=1)
        return first


def cells(part: int) -> Iterator[Cell]:
    """Yields all cells with --all. Otherwise yields a half of a selection of cells.

    The selection has every operation and every transformation.

    Args:
      part: number of the half. Only whether it is even or odd matters.
    """
    for (o, name), (d, dtype), (t, how) in itertools.product(
        enumerate(OPERATIONS), enumerate(DTYPES), enumerate(TRANSFORMATIONS)
    ):
        exact = jnp.issubdtype(reference.dtype_of(dtype), jnp.inexact)
        if how == "grad" and (not exact or not OPERATIONS[name][1]):
            continue
        if dtype == "complex64" and name in ("pmax", "pmin"):
            continue
        if exact and name in ("pand", "por"):
            continue
        if name == "pmean" and dtype == "int4":  # JAX divides int4 in its own way.
            continue
        first = dtype == ("int32" if name in ("pand", "por") else "float32")
        if _ALL.value or ((t + part) % 2 == 0 and (first or d == 1 + (o + 2 * t) % 6)):
            yield Cell(name, dtype, how)


def groups_of(shape: tuple[int, ...], chosen: tuple[int, ...]) -> np.ndarray:
    """Returns the devices of each group along the chosen axes."""
    ids = np.moveaxis(np.arange(np.prod(shape)).reshape(shape), chosen, range(len(chosen)))
    return ids.reshape(int(np.prod([shape[i] for i in chosen])), -1).T


def compare(out: Any, expected: Any) -> str:
    for array, wanted in zip(jax.tree.leaves(out), jax.tree.leaves(expected), strict=True):
        for shard in array.addressable_shards:
            wrong = reference.difference(np.asarray(shard.data), wanted[shard.index])
            if wrong:
                return wrong
    return ""


def check(mesh: Any, chosen: tuple[int, ...], levels: bool | None, part: int = 0) -> int:
    """Runs cells over some axes of the mesh; returns how many."""
    shape, names = mesh.axis_sizes, mesh.axis_names
    axes = tuple(names[i] for i in chosen)
    groups = groups_of(shape, chosen)
    processes = [device.process_index for device in mesh.devices.flat]
    todo = list(cells(part))
    inputs = {
        dtype: np.concatenate(
            [
                np.stack([reference.values(dtype, (LENGTH, 3), 2 * i + j) for j in (0, 1)], axis=1)
                for i in range(-(-mesh.size // reference.RANKS))
            ]
        )[: mesh.size]
        for dtype in DTYPES
    }
    split = jax.NamedSharding(mesh, jax.P(names))
    arguments = {
        dtype: jax.make_array_from_callback(x.shape, split, lambda i, x=x: x[i])
        for dtype, x in inputs.items()
    }

    def body(arrays):
        return [
            jax.tree.map(lambda leaf: leaf[None], cell.call(arrays[cell.dtype][0], axes, levels))
            for cell in todo
        ]

    specs = {"in_specs": jax.P(names), "out_specs": jax.P(names)}
    outs = jax.jit(jax.shard_map(body, mesh=mesh, **specs))(arguments)
    for cell, out in zip(todo, outs, strict=True):
        expected: Any = [None] * mesh.size
        for group in groups:
            model = Model([processes[i] for i in group], bool(levels))
            results = cell.expect(inputs[cell.dtype][group], model)
            for place, i in enumerate(group):
                expected[i] = jax.tree.map(lambda y, place=place: y[place], results)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *expected)
        wrong = compare(out, stacked)
        if wrong:
            raise SystemExit(f"{cell} over {axes}, levels={levels}: {wrong}")
    return len(todo)


def refuses(mesh: Any, axes: tuple[str, ...]) -> None:
    names = mesh.axis_names
    sharding = jax.NamedSharding(mesh, jax.P(names))
    x = jax.ShapeDtypeStruct((mesh.size, 4), np.float32, sharding=sharding)
    over = jax.shard_map(
        lambda v: jax_cxl.psum(v, axes, levels=True),
        mesh=mesh,
        in_specs=jax.P(names),
        out_specs=jax.P(names),
        check_vma=False,
    )
    try:
        jax.jit(over).lower(x)
    except ValueError as error:
        if "levels=True needs groups with the same number of ranks" in str(error):
            return
        raise
    raise SystemExit(f"levels=True over {axes} was not refused")


def main(_) -> None:
    # Slots are small, because each subset of the axes has its own groups, and each group its slots.
    os.environ.setdefault("JAX_CXL_SLOT_BYTES", "16384")
    jax_cxl.initialize()
    shape = tuple(map(int, _MESH.value))
    mesh = jax_cxl.make_mesh(shape, ("host", "cpu", "core")[: len(shape)])
    count = 0
    subsets = [
        chosen
        for size in range(1, len(shape) + 1)
        for chosen in itertools.permutations(range(len(shape)), size)
        if _ALL.value or chosen == tuple(sorted(chosen)) or chosen == (1, 0)
    ]
    for part, chosen in enumerate(subsets):
        axes = tuple(mesh.axis_names[i] for i in chosen)
        if chosen == (0,):
            if shape[0] == 1:
                continue
            refuses(mesh, axes)
            count += check(mesh, chosen, None, part)  # One rank of each process: one level.
        else:
            count += check(mesh, chosen, True, part)
    if _ALL.value:
        count += check(mesh, tuple(range(len(shape))), False)
    print(f"{count} cells right on a mesh {shape}", flush=True)


if __name__ == "__main__":
    app.run(main)
