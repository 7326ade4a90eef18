"""Gathers what all processes find out about a program, and limits the time of the program."""

import faulthandler
import json
import os
import sys
import threading

import jax

from jax_cxl import _compat

HUNG = 3  # Exit status.


class Verdicts:
    """Gathers the findings of all processes through JAX's coordination service, not by collectives.

    Args:
      seconds: how long a process waits for the others.
    """

    def __init__(self, seconds: float) -> None:
        self._milliseconds = int(1000 * seconds)

    def gather(self, key: str, mine: dict[str, int]) -> dict[str, int]:
        """Returns, for each name in any process's `mine`, the largest number that a process has."""
        if jax.process_count() == 1:
            return mine
        client = _compat.distributed.client()
        client.key_value_set(f"fuzz/{key}/{jax.process_index()}", json.dumps(mine))
        result: dict[str, int] = {}
        for process in range(jax.process_count()):
            text = client.blocking_key_value_get(f"fuzz/{key}/{process}", self._milliseconds)
            for name, number in json.loads(text).items():
                result[name] = max(number, result.get(name, 0))
        return result


class Limit:
    """Prints all stacks and ends the process if the body of the `with` takes too long."""

    def __init__(self, seconds: float, text: str) -> None:
        self._text = text
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        print(f"HANG {self._text}", flush=True)
        faulthandler.dump_traceback(sys.stderr)
        os._exit(HUNG)
