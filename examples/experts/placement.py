"""Moves experts between steps, so that devices have equal loads and few tokens change devices."""

from typing import Any

import jax
import numpy as np
from common.trainer import State

from experts.moe_trainer import MoeTrainer


class Mover:
    """Gives the experts of a trainer new places every few steps.

    Attributes:
      placements: one entry for each move, for the results file: "step", "largest_load" (of a
        device, divided by the mean load) and "crossing" (a share of the choices), each before and
        after the move. The figures are means over the layers.
    """

    def __init__(self, trainer: MoeTrainer, every: int):
        """Moves the experts of a trainer every `every` steps, or never if that is 0."""
        self._trainer = trainer
        self._every = every
        self.placements: list[dict[str, Any]] = []

    def after_step(self, step: int, state: State, tokens: jax.Array) -> State:
        """Returns the state after `step`, in which experts have moved if it is time for a move."""
        if not self._every or step % self._every:
            return state
        import jax_cxl

        # The counts are the same on all processes, so all processes choose the same places.
        counts = np.asarray(self._trainer.count(state.parameters, tokens)).swapaxes(0, 1)
        order = np.stack([np.argsort(jax_cxl.expert_placement(layer)) for layer in counts])
        after = np.stack([layer[:, o] for layer, o in zip(counts, order, strict=True)])
        entry: dict[str, Any] = {"step": step}
        for label, found in (("before", counts), ("after", after)):
            load, crossing = _load_and_crossing(found)
            entry |= {f"largest_load_{label}": load, f"crossing_{label}": crossing}
        self.placements.append(entry)
        return self._trainer.move(state, order.astype(np.int32))


def _load_and_crossing(counts: np.ndarray) -> tuple[float, float]:
    """Returns the largest load of a device, divided by the mean load, and the share of choices
    whose expert is on another device. Both are means over the layers.

    Args:
      counts: (layers, devices, experts): how often each device's tokens chose each expert.
    """
    layers, devices, experts = counts.shape
    by_holder = counts.reshape(layers, devices, devices, experts // devices).sum(3)
    total = by_holder.sum((1, 2))
    largest = by_holder.sum(1).max(1) * devices / total
    stays = np.trace(by_holder, axis1=1, axis2=2) / total
    return round(float(largest.mean()), 4), round(float(1 - stays.mean()), 4)
