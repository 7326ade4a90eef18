"""Checkpoints of sharded training state, by Orbax."""

import os
from typing import Any

import jax
import orbax.checkpoint as ocp

Tree = Any


class Checkpoints:
    """The checkpoints of one run in one folder, which all processes must see.

    Each checkpoint has the training state, the configuration of the run, and the figures of the
    run up to that step. Each process writes the shards of its own devices. The shapes of the state
    do not depend on the number of devices, so a run may resume on fewer or more devices.
    """

    def __init__(self, folder: str, configuration: dict[str, Any]):
        """Opens or creates a folder.

        Args:
          folder: folder of the checkpoints.
          configuration: everything that the losses depend on, as JSON values.
        """
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(os.path.abspath(folder), options=options)
        self._configuration = configuration

    def restore(self, state: Tree) -> tuple[int, Tree, dict[str, Any]] | None:
        """Reads the newest checkpoint.

        Args:
          state: a freshly initialized state, for its structure and shardings.

        Returns:
          The step, the state and the figures that were given to `save`; None if there is no
          checkpoint.

        Raises:
          ValueError: the checkpoint has another configuration.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        run = self._manager.restore(step, args=ocp.args.Composite(run=ocp.args.JsonRestore())).run
        for key, value in self._configuration.items():
            if run["configuration"].get(key) != value:
                raise ValueError(
                    f"the checkpoint of step {step} was made with {key} ="
                    f" {run['configuration'].get(key)}, this run has {value}: pass the same flags,"
                    " or another --checkpoint_dir."
                )
        template = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        restored = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(template))
        )
        return step, restored.state, run["figures"]

    def save(self, step: int, state: Tree, figures: dict[str, Any]) -> None:
        """Writes a checkpoint; returns when it is complete. All processes must call it.

        Args:
          step: number of the last step.
          state: pytree of `jax.Array`.
          figures: JSON values, the same on all processes.
        """
        run = {"configuration": self._configuration, "figures": figures}
        self._manager.save(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardSave(state), run=ocp.args.JsonSave(run)),
        )

    def close(self) -> None:
        """Closes Orbax's checkpoint manager."""
        self._manager.close()
