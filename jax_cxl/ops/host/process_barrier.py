"""The barrier between processes: `jax_cxl.barrier(name=..., timeout=...)`.

The processes meet in JAX's key-value store:

    jax_cxl/barrier/G/P   in generation G: the last barrier that process P has reached

The entry is JSON: how many barriers the process has reached, the last one, and who the process is.
"""

import json
import os
import socket
from typing import Any

from jax_cxl import _compat, errors
from jax_cxl._job import lifecycle
from jax_cxl.ops.host import meeting_point

# How many barriers this process has reached, by generation.
_reached: dict[int, int] = {}


def wait(name: str, timeout: float | None) -> None:
    """Waits until all processes have reached the barrier; see `jax_cxl.barrier`."""
    running = lifecycle.ensure_started()
    ranks = meeting_point.ranks_of_processes(running)
    if len(ranks) == 1:
        return
    what = f"barrier {name!r}"
    number = _reached[running.generation] = _reached.get(running.generation, 0) + 1
    folder = f"jax_cxl/barrier/{running.generation}/"
    me = _compat.distributed.process_id()
    who = {"number": number, "last": what, "pid": os.getpid(), "host": socket.gethostname()}
    client = _compat.distributed.client()
    client.key_value_set(f"{folder}{me}", json.dumps(who), allow_overwrite=True)

    def late() -> dict[int, dict[str, Any]]:
        entries = {
            int(key.rpartition("/")[2]): json.loads(text)
            for key, text in client.key_value_dir_get(folder)
        }
        for process in ranks:
            other = entries.get(process, who)
            if other["number"] == number and other["last"] != what:
                raise _mismatch(ranks[me][0], what, ranks[process][0], other["last"])
        known = {process: entries.get(process, {}) for process in ranks}
        return {p: entry for p, entry in known.items() if entry.get("number", 0) < number}

    meeting_point.wait(what, late, ranks, timeout)


def _mismatch(mine: int, here: str, theirs: int, there: str) -> errors.MismatchError:
    error = errors.MismatchError(
        f"the ranks wait at different barriers: rank {mine} at {here}, rank {theirs} at {there}."
        " All processes have to call the same barriers in the same order"
    )
    error.ranks, error.calls = (mine, theirs), (here, there)
    return error
