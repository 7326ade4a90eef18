"""Trains the transformer of train_transformer.py by `jax.jit` and `NamedSharding` alone.

This program does not mention jax_cxl. XLA's partitioner inserts all collectives. An option of the
launcher, or a variable, sends the collectives between processes through the memory pool:

    python -m jax_cxl.launch -n 2 examples/train_jit.py
    python -m jax_cxl.launch -n 2 --replace-collectives examples/train_jit.py
    JAX_CXL_REPLACE_COLLECTIVES=1 srun -n 2 python examples/train_jit.py

The parameters are fully sharded over all devices (FSDP). With `--tensor_parallel=N`, groups of N
neighbouring devices share the products of each layer, and the parameters are fully sharded over
the groups too:

    python -m jax_cxl.launch -n 2 --devices-per-process 2 examples/train_jit.py --tensor_parallel=2

The flags are otherwise those of train_transformer.py. `sharded/jit_trainer.py` has the shardings.
"""

from absl import app, flags
from common import training
from sharded.jit_trainer import JitTrainer

_TENSOR_PARALLEL = flags.DEFINE_integer(
    "tensor_parallel", 1, "Devices that share the products of each layer.", lower_bound=1
)


def main(argv: list[str]) -> None:
    training.prepare(argv)
    training.connect()
    sizes, dtype, optimizer = training.model()
    trainer = JitTrainer(sizes, dtype, optimizer, _TENSOR_PARALLEL.value)
    run = training.train(training.Program("XLA's"), trainer, training.load_corpus())
    training.write(run)


if __name__ == "__main__":
    app.run(main)
