"""Trains a transformer whose perceptrons are mixtures of experts, through a CXL memory pool.

    python -m jax_cxl.launch -n 2 examples/train_moe.py --exchange=dispatch --plot=loss.png

Each layer has --experts perceptrons, spread evenly over the devices, and a router chooses
--choices of them for each token. `--exchange` chooses how tokens get there and back
(experts/exchanges.py):

    dispatch   jax_cxl.moe_dispatch and moe_combine
    halves     the same for two micro-batches: while one computes, the other communicates
               (experts/microbatches.py); each has the whole capacity
    ragged     two jax_cxl.ragged_all_to_all; the same losses as dispatch
    dense      two jax_cxl.all_to_all with an equal share of each expert's rows for every device
    dense-lax  the same with jax.lax, over Gloo or NCCL; the same losses as dense

With `--place_every=N` the experts change places after every N steps, so that devices have equal
loads and few tokens cross between devices (experts/placement.py).

On GPUs, one process each:

    python -m jax_cxl.launch -n 2 examples/train_moe.py --platform=cuda --preset=moe

The other flags are those of train_transformer.py. `experts/moe_trainer.py` has the model.
"""

import importlib
from typing import Any

from absl import app, flags
from common import training
from experts import exchanges, placement
from experts.moe_trainer import MoeTrainer
from sharded import namespaces

_EXCHANGE = flags.DEFINE_enum(
    "exchange",
    "dispatch",
    ["dispatch", "halves", "ragged", "dense", "dense-lax"],
    "How tokens reach their experts.",
)
_EXPERTS = flags.DEFINE_integer("experts", 8, "Experts of each layer.", lower_bound=1)
_CHOICES = flags.DEFINE_integer("choices", 2, "Experts of each token.", lower_bound=1)
_CAPACITY_FACTOR = flags.DEFINE_float(
    "capacity_factor", 1.5, "Rows of an expert, over its mean share of the tokens."
)
_PLACE_EVERY = flags.DEFINE_integer(
    "place_every",
    0,
    "Steps between new places of the experts, by jax_cxl.expert_placement; 0 for none.",
    lower_bound=0,
)


def main(argv: list[str]) -> None:
    training.prepare(argv)
    sizes, dtype, optimizer = training.model()
    name = _EXCHANGE.value
    if _PLACE_EVERY.value and name == "dense-lax":
        raise app.UsageError("--place_every needs an exchange of jax_cxl, which moves the experts")
    collectives: Any = namespaces.Lax()
    if name == "dense-lax":
        training.connect()
        exchange = exchanges.dense(importlib.import_module("jax.lax"))
    else:
        collectives = importlib.import_module("jax_cxl")
        collectives.initialize()
        ways = {"ragged": exchanges.ragged, "dense": exchanges.dense(collectives)}
        exchange = ways.get(name, exchanges.dispatch)
    trainer = MoeTrainer(
        *(sizes, dtype, optimizer, collectives, exchange),
        *(_EXPERTS.value, _CHOICES.value, _CAPACITY_FACTOR.value, name == "halves"),
    )
    # --place_every is not one of these: the losses do not depend on where experts are.
    flag_holders = [_EXPERTS, _CHOICES, _CAPACITY_FACTOR]
    program = training.Program(name, flag_holders, [] if name == "dense-lax" else ["jax_cxl"])
    mover = placement.Mover(trainer, _PLACE_EVERY.value)
    run = training.train(program, trainer, training.load_corpus(), mover.after_step)
    run.figures["placements"] = mover.placements
    training.write(run)


if __name__ == "__main__":
    app.run(main)
