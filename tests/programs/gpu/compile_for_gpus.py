"""Compiles programs with collectives for two GPUs that need not be there.

Prints one JSON object: name of the program -> text of the module that XLA's compiler for GPUs made
of it. JAX's plugin for CUDA has to be on Python's path.
"""

import json
import pathlib
import shutil
import sys
import tempfile
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import xla

import jax_cxl

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples"))
sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from common import speed
from experts import exchanges, microbatches
from sharded import fsdp, prefetch

from jax_cxl._job import lifecycle, platforms
from jax_cxl._table.columns import Column
from jax_cxl._takeover import hook
from jax_cxl._takeover.world import World
from lab.fuzz.early import absent_gpus

WIDTH, LAYERS, ROWS = 512, 4, 64
EXPERT_LAYERS = 2
AXIS = fsdp.AXIS
# Kinds of collectives that XLA merges, up to a size that an option sets.
MERGED = "all_gather", "all_reduce", "reduce_scatter"


def straight(shards, x):
    future = jax_cxl.start(jax_cxl.all_gather, shards[1], AXIS, tiled=True)
    x = future.tie(x)
    x = jnp.tanh(x @ x.T)
    return future.done(after=x), x


def loop(shards, x):
    def step(x, shard):
        future = jax_cxl.start(jax_cxl.all_gather, shard, AXIS, tiled=True)
        tied = future.tie(x)
        x = jnp.tanh(tied @ tied.T) @ x
        return x, (tied, future.done(after=x))

    return jax.lax.scan(step, x, shards)


def stack_of_layers(shards, x):
    def layer(vector, x):
        return x + jnp.tanh(x @ vector.reshape(WIDTH, WIDTH))

    apply = prefetch.stack(layer, AXIS, jax_cxl)
    return jax.grad(lambda *v: jnp.sum(apply(*v).astype(np.float32)))(shards, x)


def layers_of_experts(shards, matrices, x):
    def before(vector, x):
        x += jnp.tanh(x @ vector.reshape(WIDTH, WIDTH))
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = jax.lax.top_k(jax.nn.softmax(tokens[:, :4].astype(np.float32)), 2)
        return (x, tokens, weights), chosen

    def experts(matrices, rows):
        return jnp.tanh(rows @ matrices)

    sizes = exchanges.Sizes(AXIS, 4, ROWS)

    def loss(shards, matrices, x):
        y = microbatches.apply(before, experts, sizes, list(shards), list(matrices), x)
        return jnp.sum(jnp.square(y.astype(np.float32)))

    return jax.grad(loss, argnums=(0, 1, 2))(shards, matrices, x)


def train(weights, x, y):
    """A step whose parameters are sharded. XLA gathers them, and gathers them again for the
    gradients."""

    @jax.checkpoint
    def layer(w, x):
        whole = jax.lax.with_sharding_constraint(w.astype(jnp.bfloat16), jax.P())
        return x + jnp.tanh(x @ whole)

    def loss(weights):
        z = x
        for w in weights:
            z = layer(w, z)
        return jnp.mean((z - y).astype(jnp.float32) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


def trained(mesh):
    """Yields the compiled text of `train` twice, with its collectives taken over.

    In the first text, the starts are where XLA has put them. In the second one, they come early.
    """
    world = World({0: 0, 1: 1}, {0: 0, 1: 1}, gpus=True)
    allowed = [None, 64 << 20]

    def transform(data):
        return hook.transform(data, lambda: world, strict=True, early_bytes=allowed[0])

    def argument(shape, *axes):
        sharding = jax.NamedSharding(mesh, jax.P(*axes))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    width, rows = 2048, 8192
    weights = [argument((width, width), AXIS)] * 6
    batch = jax.ShapeDtypeStruct(
        (2 * rows, width), jnp.bfloat16, sharding=jax.NamedSharding(mesh, jax.P(AXIS))
    )
    options = {"xla_gpu_enable_latency_hiding_scheduler": True}
    options |= {f"xla_gpu_{kind}_combine_threshold_bytes": 1 << 20 for kind in MERGED}
    stage = xla.PipelineStage.POST_SCHEDULER
    xla.register_hlo_module_transformation(transform, name="test", stage=stage, platforms="cuda")
    with jax.sharding.set_mesh(mesh):
        while allowed:
            jax.clear_caches()
            lowered = jax.jit(train, donate_argnums=0).lower(weights, batch, batch)
            yield lowered.compile(compiler_options=options).as_text()
            del allowed[0]


def two_axes(platform):
    """Returns the text of a sum inside the processes, then between them, as in docs/levels.md.

    There are two processes with two GPUs each.
    """
    devices = np.array(absent_gpus.devices(processes=2, gpus=2))
    mesh = jax.sharding.Mesh(devices.reshape(2, 2), ("host", "gpu"))
    runtime = SimpleNamespace(
        rank_of_device={device.id: rank for rank, device in enumerate(devices)},
        platform=platform,
        generation=0,
    )
    rows = jax.P(("host", "gpu"))

    def body(x, y):
        part = jax.lax.psum_scatter(x, "gpu", tiled=True)
        future = jax_cxl.start(jax_cxl.psum, part, "host")
        y = future.tie(y)
        y = jnp.tanh(y @ y.T)
        return jax.lax.all_gather(future.done(after=y), "gpu", tiled=True), y

    x = jax.ShapeDtypeStruct((4 * WIDTH, WIDTH), np.float32, sharding=jax.NamedSharding(mesh, rows))
    program = jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    with mock.patch.object(lifecycle, "ensure_started", lambda: runtime):
        return jax.jit(program).lower(x, x).compile().as_text()


def rows_of_a_table(mesh):
    """Returns the text of a loop that takes the rows of the next batch while it computes."""
    store = f"file:{tempfile.mkdtemp(prefix='jax_cxl_compiled.')}/a?size=8MiB"
    rows = np.ones((64, WIDTH), np.float32)
    table = jax_cxl.Table.create(store, "rows", rows)
    shutil.rmtree(pathlib.Path(store.removeprefix("file:")).parent)

    def step(carry, ids):
        x, rows = carry
        future = jax_cxl.start(table.take, ids)
        x = future.tie(x)
        x = jnp.tanh(x @ rows.T @ rows)
        return (x, future.done(after=x)), None

    def body(x, ids):
        return jax.lax.scan(step, (x, table.take(ids[0])), ids)[0]

    program = jax.shard_map(
        body, mesh=mesh, in_specs=(jax.P(AXIS), jax.P(None, AXIS)), out_specs=jax.P(AXIS)
    )
    x = jax.ShapeDtypeStruct((2 * ROWS, WIDTH), np.float32)
    ids = jax.ShapeDtypeStruct((LAYERS, 2 * ROWS), np.int32)
    with (
        mock.patch.object(Column, "use", lambda self, platform: None),
        mock.patch.object(lifecycle, "register_handlers", lambda platform: None),
    ):
        return jax.jit(program).lower(x, ids).compile().as_text()


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    absent_gpus.register_handlers()
    devices = np.array(absent_gpus.devices(processes=1, gpus=2))
    platform = next(platform for platform in platforms.ALL if platform.name == "cuda")
    runtime = SimpleNamespace(
        rank_of_device={device.id: rank for rank, device in enumerate(devices)},
        platform=platform,
        generation=0,
    )
    mesh = jax.sharding.Mesh(devices, (AXIS,))

    def argument(shape, *spec):
        sharding = jax.NamedSharding(mesh, jax.P(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

    def compiled(function):
        program = jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(jax.P(None, AXIS), jax.P(AXIS)),
            out_specs=jax.P(AXIS),
            check_vma=False,
        )
        arguments = argument((LAYERS, WIDTH**2), None, AXIS), argument((2 * ROWS, WIDTH), AXIS)
        return jax.jit(program).lower(*arguments).compile().as_text()

    with (
        mock.patch.object(jax, "default_backend", lambda: "gpu"),
        mock.patch.object(lifecycle, "ensure_started", lambda: runtime),
        mock.patch.object(platforms, "of", lambda device: platform),
        mock.patch.object(fsdp, "device_mesh", lambda: mesh),
    ):
        functions = straight, loop, stack_of_layers
        programs = {function.__name__: compiled(function) for function in functions}
        programs["rows_of_a_table"] = rows_of_a_table(mesh)
        shards = argument((LAYERS, WIDTH**2), None, AXIS)
        alone = speed.communication(jax_cxl, jnp.bfloat16).lower(shards)
        programs["communication"] = alone.compile().as_text()

        rows = jax.P(AXIS)
        specs = jax.P(None, AXIS), jax.P(None, AXIS), rows
        program = jax.shard_map(
            layers_of_experts, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False
        )
        shards = argument((EXPERT_LAYERS, WIDTH**2), None, AXIS)
        matrices = argument((EXPERT_LAYERS, 4, WIDTH, WIDTH), None, AXIS)
        x = argument((4, ROWS, WIDTH), AXIS)
        text = jax.jit(program).lower(shards, matrices, x).compile().as_text()
        programs["layers_of_experts"] = text
        programs["two_axes"] = two_axes(platform)
    programs["trained"], programs["trained_early"] = trained(mesh)
    print(json.dumps(programs))


main()
