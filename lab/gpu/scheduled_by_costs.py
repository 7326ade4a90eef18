"""Lets XLA's own scheduler start collectives by jax_cxl's estimates of costs: an experiment.

XLA's latency hiding scheduler takes the times of instructions from a profile, instead of its own
estimates. The first compilation of a program writes this profile, with the costs by which jax_cxl
starts collectives early (`jax_cxl/_takeover/schedule/costs.py`). The second one reads it. Decision
24 has the results.

Without GPUs, this compiles the training step of examples/train_jit.py for two GPUs and prints what
the model of early starts expects of each schedule:

    PYTHONPATH=$JAX_CXL_GPU_COMPILER JAX_PLATFORMS=cpu \\
        python -m lab.gpu.scheduled_by_costs --scales=0.8,0.9,1 --preset=340m --batch_size=12

With GPUs, it runs a program and writes the profile of its largest module:

    python -m jax_cxl.launch -n 2 -m lab.gpu.scheduled_by_costs --write=costs.pbtxt --scales=0.85 \\
        --program=examples/train_jit.py --platform=cuda --preset=340m --batch_size=12 --steps=2
"""

import argparse
import json
import logging
import pathlib
import runpy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend import xla

from jax_cxl._job import setting
from jax_cxl._takeover import find, hook, match
from jax_cxl._takeover.early import Early
from jax_cxl._takeover.hlo.module import Computation, Instruction, Module
from jax_cxl._takeover.schedule import costs, order
from jax_cxl._takeover.world import World
from lab.fuzz.early import absent_gpus

_EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
_GPUS = 2
_OPTIONS: dict[str, Any] = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    # Merged collectives would have to wait for their last operand.
    "xla_gpu_all_gather_combine_threshold_bytes": 1 << 20,
    "xla_gpu_all_reduce_combine_threshold_bytes": 1 << 20,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": 1 << 20,
}
_LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"
_PROFILE = "xla_gpu_pgle_profile_file_or_directory_path"


def _early(module: Module) -> Early:
    """Returns the collectives of a scheduled module."""
    early = Early(module)
    for found in find.collectives(module):
        if found.starts:
            ranks = len(match.collective(module, found).groups[0])
            early.add(found.computation, found.outer, found.opcode, ranks)
    return early


def profile(data: bytes, scale: float) -> str:
    """Returns the costs of a scheduled module's instructions, in the form that XLA reads.

    Args:
      data: a serialized HloModuleProto.
      scale: the costs of collectives are multiplied by this.
    """
    module = Module(data)
    estimates = costs.Costs(module)
    seconds: dict[str, float] = {}
    for number, calls in _early(module).calls.items():
        computation = module.computation(number)
        for start, call in calls.items():
            seconds[computation.instruction(start).name] = scale * call.seconds
    for computation in _scheduled(module):
        for instruction in computation.instructions():
            if instruction.name not in seconds:
                seconds[instruction.name] = estimates.seconds(computation, instruction)
    lines = [f'costs {{ name: "{n}" cost_us: {s * 1e6:.3f} }}\n' for n, s in seconds.items()]
    return "".join(lines)


def _scheduled(module: Module) -> Iterator[Computation]:
    """Yields the computations whose instructions XLA schedules."""
    stack = [module.entry]
    while stack:
        computation = stack.pop()
        yield computation
        for instruction in computation.instructions():
            if instruction.opcode in costs.CALLERS:
                called = instruction.proto.integers(Instruction.CALLED)
                stack.extend(map(module.computation, called))


def estimate(data: bytes) -> dict[str, float]:
    """Returns what the model of early starts expects of a module's schedule."""
    module = Module(data)
    early = _early(module)
    (number,) = early.calls
    computation = module.computation(number)
    nodes = early.nodes(computation, module.sequence(computation))
    seconds = order.Run(nodes, range(len(nodes))).seconds
    waits = seconds - sum(node.seconds for node in nodes)
    return {"ms": round(seconds * 1e3, 2), "waits_ms": round(waits * 1e3, 2)}


def _estimate_step(scales: Sequence[float], flags: list[str]) -> None:
    """Prints a row for each schedule of the training step."""
    sys.path.insert(0, str(_EXAMPLES))
    import train_jit
    from absl import flags as absl_flags
    from common import training

    absl_flags.FLAGS(["train_jit", *flags])
    training.prepare(["train_jit"])
    devices = np.array(absent_gpus.devices(processes=_GPUS, gpus=1)).reshape(_GPUS, 1)
    absent_gpus.register_handlers()
    mesh = jax.sharding.Mesh(devices, (train_jit.AXIS, train_jit.MODEL_AXIS))
    train_jit.device_mesh = lambda tensor_parallel: mesh
    sizes, dtype, optimizer = training.model()
    trainer = train_jit.JitTrainer(sizes, dtype, optimizer)
    shapes = jax.eval_shape(trainer._init, 0)
    stored = trainer._shardings(shapes.parameters, stored=True)
    of_optimizer = optax.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        shapes.optimizer,
        stored,
        transform_non_params=lambda _: trainer._sharding(),
    )
    state = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        shapes,
        train_jit.State(stored, of_optimizer),
    )
    values = absl_flags.FLAGS
    rows, columns = values.batch_size, values.sequence_length + 1
    tokens = jax.ShapeDtypeStruct(
        (rows, columns), jnp.int32, sharding=jax.NamedSharding(mesh, jax.P(train_jit.AXIS))
    )
    ranks = {rank: rank for rank in range(_GPUS)}
    modules: list[bytes] = []

    def note(data: bytes) -> None:
        if any(text in data for text in find.TEXTS):
            modules.append(data)

    stage = xla.PipelineStage.POST_SCHEDULER
    xla.register_hlo_module_transformation(note, name="costs", stage=stage, platforms="cuda")

    def compile_step(name: str, options: dict[str, Any]) -> None:
        jax.clear_caches()
        with jax.sharding.set_mesh(mesh):
            compiled = trainer.step.lower(state, tokens).compile(
                compiler_options=_OPTIONS | options
            )
        temporary = compiled.memory_analysis().temp_size_in_bytes >> 20
        print(json.dumps({"schedule": name, **estimate(modules[-1]), "temporary_mib": temporary}))

    compile_step("XLA's, 4 at a time", {_LIMIT: 4})
    first = modules[-1]
    # Logs what the model expects of early starts.
    logging.getLogger("jax_cxl").setLevel(logging.INFO)
    world = World(ranks, ranks, gpus=True)
    hook.transform(first, lambda: world, strict=True, early_bytes=setting.EARLY_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        for scale in scales:
            path = pathlib.Path(folder) / f"{scale}.pbtxt"
            path.write_text(profile(first, scale))
            compile_step(f"by costs, collectives times {scale}", {_LIMIT: 1, _PROFILE: str(path)})


def _write_profile(path: pathlib.Path, scale: float, program: str, flags: list[str]) -> None:
    """Runs a program, and writes the profile of its largest module with collectives."""
    largest = 0

    def note(data: bytes) -> None:
        nonlocal largest
        if len(data) > largest and any(text in data for text in find.TEXTS):
            largest = len(data)
            if jax.process_index() == 0:
                path.write_text(profile(data, scale))

    stage = xla.PipelineStage.POST_SCHEDULER
    xla.register_hlo_module_transformation(note, name="costs", stage=stage, platforms="cuda")
    sys.argv = [program, *flags]
    sys.path.insert(0, str(pathlib.Path(program).parent))
    runpy.run_path(program, run_name="__main__")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--scales", default="1", help="factors of the costs of collectives")
    parser.add_argument("--write", type=pathlib.Path, help="write the profile of --program")
    parser.add_argument("--program", help="a program for GPUs")
    options, flags = parser.parse_known_args()
    logging.basicConfig(format="%(message)s")
    scales = [float(scale) for scale in options.scales.split(",")]
    if options.write is None:
        _estimate_step(scales, flags)
    else:
        if not options.program:
            parser.error("--write needs --program")
        _write_profile(options.write, scales[0], options.program, flags)


if __name__ == "__main__":
    main()
