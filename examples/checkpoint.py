"""Checkpoints of sharded training state, by Orbax."""

import os
from typing import Any

import jax
import orbax.checkpoint as ocp

Tree = Any


class Checkpoints:
    """The checkpoints of one run in one folder, which all processes must see.

    Each holds the training state, every device's shard written by its own process, and beside it
    what the run is (its configuration) and what it measured so far. The state's shapes do not
    depend on the number of devices, so a run may resume on fewer or more.
    """

    def __init__(self, folder: str, configuration: dict[str, Any]):
        """Opens or creates a folder.

        Args:
            folder: where the checkpoints are.
            configuration: everything that the losses depend on; JSON values.
        """
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(os.path.abspath(folder), options=options)
        self._configuration = configuration

    def restore(self, state: Tree) -> tuple[int, Tree, dict[str, Any]] | None:
        """Reads the newest checkpoint.

        Args:
            state: a freshly initialized state, for its structure and shardings.

        Returns:
            The step after which it was taken, the state and the figures given to `save`; None where
            there is no checkpoint.

        Raises:
            ValueError: the checkpoint is another configuration's.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        run = self._manager.restore(step, args=ocp.args.Composite(run=ocp.args.JsonRestore())).run
        for key, value in self._configuration.items():
            if run["configuration"].get(key) != value:
                raise ValueError(
                    f"the checkpoint of step {step} was made with {key} ="
                    f" {run['configuration'].get(key)}, this run has {value}: give the same flags,"
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
            step: the step after which `state` is.
            state: pytree of `jax.Array`.
            figures: JSON values, the same on all processes.
        """
        run = {"configuration": self._configuration, "figures": figures}
        self._manager.save(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardSave(state), run=ocp.args.JsonSave(run)),
        )

    def close(self) -> None:
        """Releases what Orbax holds."""
        self._manager.close()
