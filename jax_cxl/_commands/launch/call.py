"""A rank of `jax_cxl.run`: `python -m jax_cxl._commands.launch.call FOLDER`."""

import os
import pathlib
import pickle
import sys
from typing import Any

from jax_cxl._commands.launch import run
from jax_cxl._job import variables


def main() -> None:
    """Calls the function that is stored in the folder, and writes its result there."""
    folder = pathlib.Path(sys.argv[1])
    function, arguments = pickle.loads((folder / run.CALL).read_bytes())
    result = _as_numpy(function(*arguments))
    path = folder / f"{run.RESULT}.{os.environ[variables.RANK]}"
    path.write_bytes(pickle.dumps(result))


def _as_numpy(result: Any) -> Any:
    """Returns a pytree with NumPy arrays in place of JAX arrays."""
    import jax
    import numpy as np

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        if not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            raise TypeError(
                "run: the result has an array with shards in other processes. Return"
                " jax_cxl.process_gather(...) of the shards, or an array that each process has"
            )
        return np.asarray(leaf)

    return jax.tree.map(convert, result)


if __name__ == "__main__":
    main()
