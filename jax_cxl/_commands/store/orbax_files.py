"""Writes versions as orbax checkpoints, and reads such checkpoints."""

import logging
import math
import os
import pathlib
from typing import Any

import numpy as np

from jax_cxl import errors
from jax_cxl._store.reading import restoring
from jax_cxl._store.trees import names


def write(reader: restoring.Reader, folder: pathlib.Path) -> None:
    """Writes a version as a checkpoint that `StandardCheckpointer` restores, into a new folder.

    Typed PRNG keys become their key data.
    """
    refused = [
        name
        for name, leaf in reader.leaves.items()
        if isinstance(leaf.value, str) or (leaf.dtype and math.prod(leaf.shape) == 0)
    ]
    if refused:
        raise errors.CxlError(
            "an orbax checkpoint cannot hold text, or arrays without elements:"
            f" {', '.join(refused)}. Save a version without them, and export that"
        )
    values = {
        name: reader.read_same(leaf, tuple((0, n) for n in leaf.shape))
        if leaf.dtype
        else leaf.value
        for name, leaf in reader.leaves.items()
    }
    tree = _nested(values)
    checkpointer = _orbax().StandardCheckpointer()
    try:
        checkpointer.save(folder.absolute(), tree)
        checkpointer.wait_until_finished()
    except (ValueError, TypeError, OSError, OverflowError) as error:
        raise errors.CxlError(f"orbax cannot write {folder}: {error}") from error
    finally:
        checkpointer.close()


def read(folder: pathlib.Path) -> Any:
    """Reads a checkpoint: a tree of NumPy arrays and Python values, in dicts and lists.

    Args:
      folder: folder of the checkpoint, or of a step of a `CheckpointManager`.
    """
    import jax

    ocp = _orbax()
    found = next((f for f in (folder, folder / "default") if (f / "_METADATA").exists()), None)
    if found is None:
        raise errors.CxlError(
            f"{folder} has no file _METADATA, so it is not an orbax checkpoint of a tree: pass the"
            " folder of one, or of a step of a CheckpointManager"
        )
    checkpointer = ocp.PyTreeCheckpointer()
    try:
        described = checkpointer.metadata(found.absolute()).item_metadata.tree
        # Read NumPy arrays, no matter which devices saved the checkpoint.
        types = jax.tree.map(
            lambda x: ocp.RestoreArgs(restore_type=_restored_as(ocp, x)), described
        )
        return checkpointer.restore(found.absolute(), restore_args=types)
    except (ValueError, TypeError, KeyError, OSError, AttributeError) as error:
        raise errors.CxlError(f"orbax cannot read {folder}: {error}") from error
    finally:
        checkpointer.close()


def _restored_as(ocp: Any, described: Any) -> type | None:
    scalar = isinstance(described, ocp.metadata.ScalarMetadata)
    return np.ndarray if isinstance(described, ocp.metadata.ArrayMetadata) and not scalar else None


def _nested(values: dict[str, Any]) -> Any:
    """Returns a tree of dicts and lists, made from the names of its leaves and their values."""
    root: dict[str | int, Any] = {}
    for name, value in values.items():
        *nodes, last = names.parse(name) or ("",)
        node = root
        for key in nodes:
            node = node.setdefault(key, {})
        node[last] = value
    if set(root) == {""}:
        raise errors.CxlError("orbax has no checkpoints of a single leaf: save it in a dict")
    return _with_lists(root)


def _with_lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and set(node) == set(range(len(node))):
        return [_with_lists(node[i]) for i in range(len(node))]
    return {str(key): _with_lists(value) for key, value in node.items()}


def _orbax() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        import orbax.checkpoint
    except ImportError:
        raise errors.CxlError(
            "this needs orbax: pip install orbax-checkpoint, or 'jax_cxl[examples]'"
        ) from None
    return orbax.checkpoint
