"""Writes versions as safetensors files, and reads such files."""

import pathlib
from typing import Any

import numpy as np

from jax_cxl import errors
from jax_cxl._store.reading import restoring
from jax_cxl._store.trees import names


def write(reader: restoring.Reader, path: pathlib.Path) -> None:
    """Writes a version to a new file. The names of tensors have dots: `layers.0.weight`."""
    tensors: dict[str, np.ndarray] = {}
    for name, leaf in reader.leaves.items():
        key = ".".join(names.simple(name))
        if not leaf.dtype or key in tensors or not key:
            raise errors.CxlError(
                f"a safetensors file cannot hold {name}, only arrays, each with its own name:"
                " read it with Store.read instead, and save it by a library of your choice"
            )
        tensors[key] = reader.read_same(leaf, tuple((0, n) for n in leaf.shape))
    try:
        _safetensors().save_file(tensors, path)
    except Exception as error:  # The library raises a type of its own.
        raise errors.CxlError(f"safetensors cannot write {path}: {error}") from error


def read(path: pathlib.Path) -> dict[str, Any]:
    """Reads a file, and returns a dict of NumPy arrays."""
    library = _safetensors()
    try:
        tensors: dict[str, Any] = library.load_file(path)
    except Exception as error:  # The library raises a type of its own.
        raise errors.CxlError(f"safetensors cannot read {path}: {error}") from error
    return tensors


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise errors.CxlError("this needs safetensors: pip install safetensors") from None
    return safetensors.numpy
