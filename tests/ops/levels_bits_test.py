"""Collectives in levels, and which collectives run in them.

The eight devices of this one process stand for the devices of two or four processes. Results have
to equal those of the NumPy model in every bit.
"""

import functools
import math
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized
from jax import lax
from matrix import reference
from matrix.levels import Model

import jax_cxl
from jax_cxl._job import lifecycle
from jax_cxl._lowering import contract
from jax_cxl._lowering.levels import choice
from jax_cxl._lowering.primitives import rank_groups

DEVICES = 8
DTYPES = ("float32", "bfloat16", "int32", "float8_e5m2", "complex64")
# No number of ranks divides 31 x 37 elements, or the 73 elements of a block.
ODD, BLOCKS = (31, 37), (16, 73)
# Shape of the mesh, axes of the collective, devices of a process.
MESHES: tuple[tuple[tuple[int, ...], tuple[str, ...], int], ...] = (
    ((2, 4), ("host", "cpu"), 4),
    ((4, 2), ("host", "cpu"), 2),
    ((4, 2), ("cpu", "host"), 2),
    ((2, 2, 2), ("host", "cpu", "core"), 4),
    ((2, 2, 2), ("core", "host"), 4),
    ((2, 2, 2), ("cpu", "core"), 4),  # One process: nothing goes through the pool.
    ((8,), ("host",), 4),
)


def _broadcast(x, axis_name, **options):
    return jax_cxl.broadcast(x, axis_name, root=lax.axis_size(axis_name) - 2, **options)


WHOLE = {
    name: getattr(jax_cxl, name) for name in ("psum", "pmean", "pmax", "pmin", "pand", "por")
} | {"broadcast": _broadcast}
IN_BLOCKS = {
    name: functools.partial(getattr(jax_cxl, name), **options)
    for name, options in {
        "psum_scatter": {"tiled": True},
        "all_gather": {"tiled": True},
        "all_to_all": {"split_axis": 0, "concat_axis": 0, "tiled": True},
    }.items()
}


def has(name: str, dtype: str) -> bool:
    """Returns whether a collective takes arrays of this dtype."""
    if name in ("pand", "por"):
        return dtype == "int32"
    return dtype != "complex64" or name not in ("pmax", "pmin")


def values(dtype: str, *shape: int) -> np.ndarray:
    """Returns values for all devices."""
    parts = range(-(-DEVICES // reference.RANKS))
    return np.concatenate([reference.values(dtype, shape, seed) for seed in parts])[:DEVICES]


def mesh_of(shape: tuple[int, ...]) -> Any:
    return harness.mesh(shape, ("host", "cpu", "core")[: len(shape)])


def groups_of(mesh: Any, axes: tuple[str, ...]) -> np.ndarray:
    """Returns the devices of each group of a collective over axes of a mesh."""
    ids = np.arange(mesh.size).reshape(mesh.axis_sizes)
    chosen = [mesh.axis_names.index(axis) for axis in axes]
    size = np.prod([mesh.axis_sizes[i] for i in chosen])
    return np.moveaxis(ids, chosen, range(len(chosen))).reshape(size, -1).T


def expect(model: str, x: np.ndarray, groups: np.ndarray, per_process: int) -> np.ndarray:
    """Returns the results of all devices, according to the method `model` of `Model`."""
    results: list[Any] = [None] * len(x)
    for group in groups:
        of_group = Model(group // per_process, in_levels=True)
        for i, result in zip(group, getattr(of_group, model)(x[group]), strict=True):
            results[i] = result
    return np.stack(results)


class LevelsTest(parameterized.TestCase):
    def devices_per_process(self, number: int) -> None:
        """Makes jax_cxl believe that `number` devices belong to each process."""
        process_of = {rank: rank // number for rank in range(DEVICES)}
        self.enter_context(mock.patch.object(rank_groups, "processes", lambda ctx: process_of))

    def check_same(self, actual: Any, expected: np.ndarray) -> None:
        self.assertEqual(reference.difference(np.asarray(actual), expected), "")

    # Each mesh comes with three dtypes, and each dtype with four meshes or more.
    @parameterized.parameters(
        (case, dtype)
        for m, case in enumerate(MESHES)
        for d, dtype in enumerate(DTYPES)
        if (m + d) % 5 in (0, 2, 3)
    )
    @pytest.mark.sample(4)
    def test_collectives(self, case, dtype):
        shape, axes, per_process = case
        self.devices_per_process(per_process)
        mesh = mesh_of(shape)
        groups = groups_of(mesh, axes)
        inputs = {"whole": values(dtype, *ODD), "in_blocks": values(dtype, *BLOCKS)}
        calls = {
            name: (kind, run)
            for kind, runs in (("whole", WHOLE), ("in_blocks", IN_BLOCKS))
            for name, run in runs.items()
            if has(name, dtype)
        }

        def body(x):
            return {name: run(x[kind], axes, levels=True) for name, (kind, run) in calls.items()}

        outs = harness.run(body, inputs, on=mesh)
        for name, (kind, _) in calls.items():
            with self.subTest(name):
                self.check_same(outs[name], expect(name, inputs[kind], groups, per_process))

    def lowered(self, run: Callable, axes: tuple[str, ...], num_bytes: int) -> str:
        """Returns the lowered program of a collective over axes of a mesh of 2 x 4 devices."""
        self.devices_per_process(4)
        program = harness.program(lambda v: run(v, axes), check_vma=True, on=mesh_of((2, 4)))
        x = jax.ShapeDtypeStruct((DEVICES, num_bytes // 4), np.float32)
        return program.lower(x).as_text()

    @parameterized.parameters(
        ("psum", 4 << 20, True),
        ("psum", (4 << 20) - 4, False),
        ("psum_scatter", 4 << 20, True),
        ("psum_scatter", (4 << 20) - 32, False),
        ("all_to_all", 4 << 20, True),
        ("all_to_all", (4 << 20) - 32, False),
        ("all_gather", 64 << 20, False),
        ("broadcast", 64 << 20, False),
    )
    def test_the_table_chooses(self, name, num_bytes, in_levels):
        text = self.lowered((WHOLE | IN_BLOCKS)[name], ("host", "cpu"), num_bytes)
        self.assertIn(f"processes = {2 if in_levels else 0} : i32", text)

    def test_the_larger_buffer_counts(self):
        tuning = types.SimpleNamespace(levels_all_gather_bytes=8 << 10)
        runtime = lifecycle.ensure_started()
        changed = mock.Mock(wraps=runtime, tuning=tuning)
        changed.configure_mock(
            rank_of_device=runtime.rank_of_device,
            platform=runtime.platform,
            generation=runtime.generation,
        )
        self.enter_context(mock.patch.object(lifecycle, "ensure_started", lambda: changed))
        for num_bytes, processes in ((1 << 10, 2), ((1 << 10) - 4, 0)):
            text = self.lowered(IN_BLOCKS["all_gather"], ("host", "cpu"), num_bytes)
            self.assertIn(f"processes = {processes} : i32", text)

    @parameterized.parameters(("cpu",), ("host",))
    def test_groups_in_which_levels_do_not_pay(self, axis):
        # Four devices of one process, and one device of each process.
        self.assertIn("processes = 0 : i32", self.lowered(jax_cxl.psum, (axis,), 64 << 20))

    @parameterized.parameters(((2, 3), False), ((2, 4), True))
    def test_small_groups_have_no_levels(self, shape, pays):
        grid = np.arange(math.prod(shape)).reshape(shape)
        self.assertEqual(choice.pays(contract.Op.ALL_REDUCE, 64 << 20, grid), pays)

    def test_gpus_have_no_levels(self):
        program = harness.program(
            lambda v: jax_cxl.psum(v, ("host", "cpu"), levels=True),
            check_vma=True,
            on=mesh_of((2, 4)),
        )
        traced = program.trace(values("float32", *ODD))
        with self.assertRaisesRegex(ValueError, "between CPU devices only. Between GPUs leave"):
            traced.lower(lowering_platforms=("cuda",))

    @parameterized.parameters("float32", "bfloat16")
    def test_other_dimensions(self, dtype):
        self.devices_per_process(4)
        mesh = mesh_of((2, 4))
        axes, groups = ("host", "cpu"), np.arange(DEVICES)[None]
        x = values(dtype, *BLOCKS).swapaxes(1, 2)
        runs = {
            "psum_scatter": {"scatter_dimension": 1, "tiled": True},
            "all_gather": {"axis": 1, "tiled": True},
            "all_to_all": {"split_axis": 1, "concat_axis": 1, "tiled": True},
        }
        outs = harness.run(
            lambda v: {
                name: getattr(jax_cxl, name)(v, axes, levels=True, **options)
                for name, options in runs.items()
            },
            x,
            on=mesh,
        )
        for name, out in outs.items():
            with self.subTest(name):
                self.check_same(out, expect(name, x.swapaxes(1, 2), groups, 4).swapaxes(1, 2))

    def test_axis_index_groups(self):
        self.devices_per_process(4)
        # The second group names a device of the second process first, so its sum begins with the
        # devices of that process.
        groups = [[0, 4, 1, 5], [7, 2, 6, 3]]
        x = values("float32", *BLOCKS)
        outs = harness.run(
            lambda v: {
                name: run(v, "host", axis_index_groups=groups, levels=True)
                for name, run in ({"psum": jax_cxl.psum} | IN_BLOCKS).items()
            },
            x,
            on=mesh_of((8,)),
        )
        for name, out in outs.items():
            with self.subTest(name):
                self.check_same(out, expect(name, x, np.array(groups), 4))

    @parameterized.parameters(
        ("unequal numbers", [[0, 1, 2, 4], [3, 5, 6, 7]]),
        ("other places", [[0, 1, 4, 5], [2, 6, 3, 7]]),
        ("one rank of each process", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    )
    def test_groups_that_have_no_levels(self, _, groups):
        self.devices_per_process(4)
        program = harness.program(
            lambda v: jax_cxl.psum(v, "host", axis_index_groups=groups, levels=True),
            check_vma=True,
            on=mesh_of((8,)),
        )
        with self.assertRaisesRegex(ValueError, "levels=True needs groups with the same number"):
            program.lower(values("float32", *ODD))

    def test_transformations(self):
        self.devices_per_process(4)
        axes, groups = ("host", "cpu"), np.arange(DEVICES)[None]
        x, y = values("float32", *BLOCKS), values("float32", *BLOCKS)[::-1]

        def total(v):
            return jax_cxl.psum(v, axes, levels=True)

        def scatter(v):
            return jax_cxl.psum_scatter(v, axes, tiled=True, levels=True)

        def gather(v):
            return jax_cxl.all_gather(v, axes, tiled=True, levels=True)

        def body(values):
            v, w = values
            both = jnp.stack([v, w])
            part, pull = jax.vjp(scatter, v)
            future = jax_cxl.start(jax_cxl.psum, v, axes, levels=True)
            return {
                "vmap": jax.vmap(total)(both),
                "scan": lax.scan(lambda c, u: (c, total(u)), 0, both)[1],
                "gradient": pull(part)[0],
                "gradient of all_gather": jax.vjp(gather, v)[1](gather(w))[0],
                "cond": lax.cond(v[0, 0] < 1e9, total, jnp.negative, w),
                "start, done": future.done(),
            }

        def model(name, v):
            return expect(name, v, groups, 4)

        stacked = np.stack([model("psum", x), model("psum", y)], axis=1)
        expected = {
            "vmap": stacked,
            "scan": stacked,
            "gradient": model("all_gather", model("psum_scatter", x)),
            "gradient of all_gather": model("psum_scatter", model("all_gather", y)),
            "cond": model("psum", y),
            "start, done": model("psum", x),
        }
        outs = harness.run(body, (x, y), check_vma=False, on=mesh_of((2, 4)))
        for name, out in outs.items():
            with self.subTest(name):
                self.check_same(out, expected[name])


if __name__ == "__main__":
    absltest.main()
