"""Trains a byte-level transformer with FSDP whose collectives go through a CXL memory pool.

    python -m jax_cxl.launch -n 2 examples/train_transformer.py --plot=loss.png --json=run.json

reads the standard library of this Python and learns to predict the next byte, in some minutes on
two processor cores. It also runs under Slurm or mpirun, or as one process with several devices:

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/train_transformer.py

`--collectives=lax` trains the same model to the same losses with JAX's own collectives. The flag
chooses the namespace, `jax_cxl` or `jax.lax`. Model and training step are the same for both.
`train_jit.py` trains the same model with `jax.jit` alone, and calls no collective.

With several CPU devices in each process, `--shard=host`, `all` or `levels` chooses how the
parameters are divided among them (sharded/levels.py):

    python -m jax_cxl.launch -n 2 --devices-per-process 4 examples/train_transformer.py --shard=host

On GPUs, one process each:

    python -m jax_cxl.launch -n 4 examples/train_transformer.py --platform=cuda --preset=340m

In the order of reading: `common/transformer.py` (the model), `sharded/fsdp.py` (sharding),
`common/trainer.py` and `sharded/fsdp_trainer.py` (the two together), `common/training.py` (the
loop), this file, `sharded/prefetch.py` (communication beside computation), and the rest of
`sharded/` and `common/`.
"""

import importlib
from typing import Any

from absl import app, flags
from common import speed, training
from sharded import fsdp, levels, namespaces
from sharded.fsdp_trainer import FsdpTrainer

_COLLECTIVES = flags.DEFINE_enum(
    "collectives", "cxl", ["cxl", "lax"], "Through the memory pool, or JAX's own."
)
_SHARD = flags.DEFINE_enum(
    "shard", None, ["host", "all", "levels"], "How to divide the parameters (levels.py)."
)
_PREFETCH = flags.DEFINE_bool(
    "prefetch", False, "Communicate the parameters of a layer while its neighbor computes."
)
_MEASURE = flags.DEFINE_bool(
    "measure", False, "At the end, time steps with and without communication (needs --prefetch)."
)


def _start() -> fsdp.Collectives:
    """Joins the other processes, if there are any, and returns the collectives to use."""
    if _COLLECTIVES.value == "cxl":
        jax_cxl = importlib.import_module("jax_cxl")
        jax_cxl.initialize()
        return levels.Sharding(jax_cxl, _SHARD.value) if _SHARD.value else jax_cxl
    training.connect()
    return namespaces.Lax()


def _pool_counters(collectives: Any) -> tuple[int, float]:
    """Returns bytes written to and read from the pool, and seconds, of this process's ranks."""
    if isinstance(collectives, namespaces.Lax):
        return 0, 0.0
    stats = collectives.stats()
    return stats.bytes_published + stats.bytes_retrieved, stats.seconds


def main(argv: list[str]) -> None:
    training.prepare(argv)
    sizes, dtype, optimizer = training.model()
    if _PREFETCH.value and sizes.layers < 2:
        raise app.UsageError("--prefetch needs at least two --layers")
    if _MEASURE.value and not _PREFETCH.value:
        raise app.UsageError("--measure needs --prefetch")
    if _SHARD.value and (_PREFETCH.value or _COLLECTIVES.value == "lax"):
        raise app.UsageError("--shard works without --prefetch and --collectives=lax")
    collectives = _start()
    text = training.load_corpus()

    def make_trainer(collectives: Any) -> FsdpTrainer:
        return FsdpTrainer(sizes, dtype, optimizer, collectives, _PREFETCH.value)

    trainer = make_trainer(collectives)
    name = _COLLECTIVES.value
    program = training.Program(name, [_PREFETCH, _SHARD], ["jax_cxl"] if name == "cxl" else [])
    bytes_before, seconds_before = _pool_counters(collectives)
    run = training.train(program, trainer, text)
    bytes_after, seconds_after = _pool_counters(collectives)
    run.figures |= {
        "bytes_through_pool": bytes_after - bytes_before,
        "communication_seconds": seconds_after - seconds_before,
        "pool_figures": "training and evaluation; sums over the ranks of process 0",
    }
    if isinstance(collectives, namespaces.Lax):
        run.figures["communication_seconds"] = None
        run.figures["pool_figures"] = "none: jax.lax neither uses the pool nor reports its time"
    if _MEASURE.value:
        run.figures |= speed.measure(
            trainer.step,
            make_trainer(namespaces.StandIns(collectives)).step,
            run.state,
            training.batch(trainer, text, 1),
            collectives,
            dtype,
        )
    training.write(run)


if __name__ == "__main__":
    app.run(main)
