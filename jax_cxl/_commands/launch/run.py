"""jax_cxl.run: the launcher as a function, for notebooks.

Each rank runs `python -m jax_cxl._commands.launch.run FOLDER`, which calls the function that is
stored in FOLDER.
"""

import importlib
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from jax_cxl import _text, errors
from jax_cxl._job import variables

# How many of the last lines of output the error of a failed job quotes.
_LAST_LINES = 20


def run(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int = 2,
    devices_per_process: int = 1,
    replace_collectives: bool = False,
    environment: Mapping[str, str] | None = None,
) -> list[Any]:
    """Runs a function as several processes on this machine, and returns their results.

    It starts them as `python -m jax_cxl.launch` does. The function is a whole program: it calls
    `jax_cxl.initialize()` or `jax.distributed.initialize()` itself. The output of the processes
    appears in this process's output, with the rank before each line.

    Args:
      function: a function of an installed module, or one that this program or notebook defines. The
        latter needs cloudpickle.
      *arguments: its arguments, the same in all processes.
      ranks: number of processes.
      devices_per_process: CPU devices, or GPUs, of each process.
      replace_collectives: whether all of JAX's collectives go through the pool.
      environment: environment variables of the processes, in addition to those of this process.

    Returns:
      A list with the result of each process, in the order of ranks. JAX arrays become NumPy
      arrays.

    Raises:
      CxlError: a process has failed. The message ends with the last lines of the output.
      TypeError: the function, an argument or a result cannot be passed to another process.
      ValueError: `ranks` or `devices_per_process` is less than 1.

    Example:
      >>> def total():
      ...   import jax, jax.numpy as jnp
      ...   jax.distributed.initialize()
      ...   mesh = jax.sharding.Mesh(jax.devices(), ("i",))
      ...   x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("i")))
      ...   return jax.jit(jnp.sum)(x)
      >>> jax_cxl.run(total, ranks=2, replace_collectives=True)
      [array(28., dtype=float32), array(28., dtype=float32)]
    """
    if ranks < 1 or devices_per_process < 1:
        raise ValueError(
            f"run: ranks={ranks} and devices_per_process={devices_per_process} must be at least 1"
        )
    with tempfile.TemporaryDirectory(prefix="jax_cxl.") as name:
        folder = pathlib.Path(name)
        (folder / "call").write_bytes(_pickled(function, arguments))
        command = [sys.executable, "-m", "jax_cxl.launch", "-n", str(ranks), "--oversubscribe"]
        command += ["--devices-per-process", str(devices_per_process)]
        command += ["--replace-collectives"] * replace_collectives
        command += ["-m", "jax_cxl._commands.launch.run", name]
        # Let the processes import what this process can import.
        paths = {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
        status, last = _follow(command, os.environ | paths | dict(environment or {}))
        if status:
            said = "\n".join(last)
            raise errors.CxlError(f"the processes ended with status {status}:\n{said}")
        return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(ranks)]


def _pickled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    pickler: Any = pickle
    name = getattr(function, "__qualname__", "")
    if getattr(function, "__module__", "__main__") == "__main__" or "<" in name:
        try:
            pickler = importlib.import_module("cloudpickle")
        except ImportError:
            raise TypeError(
                f"run: {function!r} is a function of this program, which another process cannot"
                " import. Install cloudpickle (pip install 'jax_cxl[notebook]'), or move it into a"
                " module"
            ) from None
    try:
        return pickler.dumps((function, arguments))
    except Exception as error:
        raise TypeError(
            f"run: function and arguments cannot be pickled: {_text.clause(error)}. Pass arguments"
            " that pickle accepts, and create other objects inside the function"
        ) from error


def _follow(command: list[str], environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Runs a command and prints its output; returns its status and the last lines."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # In a session of its own, the command does not get an interrupt of the notebook. Only this
        # process gets the interrupt, and passes it on.
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                print(line, end="", flush=True)
                last.append(line.rstrip())
        except BaseException:
            child.send_signal(signal.SIGINT)
            raise
    return child.returncode, list(last)


def _call(folder: pathlib.Path) -> None:
    """Calls the function that is stored in the folder, and writes its result there."""
    function, arguments = pickle.loads((folder / "call").read_bytes())
    result = _as_numpy(function(*arguments))
    (folder / os.environ[variables.RANK]).write_bytes(pickle.dumps(result))


def _as_numpy(result: Any) -> Any:
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
    _call(pathlib.Path(sys.argv[1]))
