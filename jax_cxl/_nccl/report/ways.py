"""The ways to communicate, each with its own processes and their environment, in turns."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

from .. import library

_COPIES = {"NCCL_SHM_USE_CUDA_MEMCPY": "1", "NCCL_SHM_MEMCPY_MODE": "3"}
PRELOADED = "libnccl.so.2"  # The loader finds the library that is preloaded.
_SECONDS = 180  # The longest time of a request.


def nccl() -> str:
    """Returns the path of NVIDIA's library, or its name if the loader has to find it."""
    return os.environ.get("JAX_CXL_NCCL_LIBRARY") or str(library.real_path() or PRELOADED)


def environments(base: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Returns the environment of each way."""
    ours = str(library.path())
    dropped = {*_COPIES, "JAX_CXL_NCCL_COMPARE"}  # Comparisons take time.
    plain = {name: value for name, value in base.items() if name not in dropped}
    plain["NCCL_P2P_DISABLE"] = "1"
    preloaded = plain.get("LD_PRELOAD", "").split(":")
    plain["LD_PRELOAD"] = ":".join(each for each in preloaded if each not in ("", ours))
    pool = {**plain, **library.environment("all", plain, one_gpu=True), "NCCL_DEBUG": "INFO"}
    return {"pool": pool, "nccl": plain, "copies": {**plain, **_COPIES}}


class WayError(Exception):
    """A way cannot be measured. The text gives the reason."""


class Way:
    """The processes of a way, one for each card."""

    def __init__(self, variables: Mapping[str, str], cards: int, path: str) -> None:
        # The processes append, wherever this one reads.
        self._log = tempfile.TemporaryFile("a+", errors="replace")  # noqa: SIM115
        self._pipes, self._processes = [], []
        for rank in range(cards):
            here, there = multiprocessing.Pipe()
            module = [sys.executable, "-m", f"{__package__}.rank"]
            process = subprocess.Popen(
                [*module, *map(str, (there.fileno(), rank, cards, path))],
                env=variables,
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def ask(self, name: str, *arguments: Any, ranks: Sequence[int] = ()) -> list[Any]:
        """Returns what ranks answer to a request: all ranks, or those in `ranks`."""
        pipes = [self._pipes[rank] for rank in ranks] or self._pipes
        answers: dict[Any, Any] = {}
        try:
            for pipe in pipes:
                pipe.send((name, arguments))
            while len(answers) < len(pipes):
                # If a rank fails, the others may wait for it and never answer.
                others = [pipe for pipe in pipes if pipe not in answers]
                ready: list[Any] = connection.wait(others, _SECONDS)
                answers.update((pipe, pipe.recv()) for pipe in ready)
                failed = [each for each in answers.values() if isinstance(each, Exception)]
                if failed or not ready:
                    why = failed[0] if failed else f"no answer in {_SECONDS} s"
                    raise WayError(f"{name}: {why}.{self._end()}")
        except (EOFError, OSError):
            raise WayError(f"{name}: a process ended.{self._end()}") from None
        return [answers[pipe] for pipe in pipes]

    def start(self, most: int) -> list[Any]:
        """Makes the communicator, for calls of up to `most` bytes; returns NCCL's version."""
        return self.ask("start", self.ask("unique_id", ranks=[0])[0], most)

    def said(self) -> str:
        """Returns what the processes have printed."""
        self._log.seek(0)
        return self._log.read()

    def _end(self) -> str:
        lines = [line for line in self.said().splitlines() if "NCCL INFO" not in line]
        return " The last lines: " + " / ".join(lines[-4:]) if lines else ""

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()


class Ways:
    """Ways that take turns. A way that fails is not asked again.

    Attributes:
      ways: those that have not failed.
      failed: for each way that has failed, the reason.
    """

    def __init__(self, every: Mapping[str, Way]) -> None:
        self.failed: dict[str, str] = {}
        self.ways = {**every}

    def each(self, method: Callable[..., list[Any]], *arguments: Any) -> dict[str, list[Any]]:
        """Returns what a method of each way returns."""
        answers = {}
        for name, way in [*self.ways.items()]:
            try:
                answers[name] = method(way, *arguments)
            except WayError as error:
                self.failed[name] = str(error)
                self.ways.pop(name).close()
        return answers

    def rounds(self, rounds: int, name: str, cases: Sequence[Any]) -> dict[str, list[list[float]]]:
        """Returns for each way what each request gives: the least, the median and the most.

        Args:
          rounds: number of rounds. In each of them the ways take turns for each case.
          name: name of the request, whose answer is a number. The slowest rank counts.
          cases: the arguments of each request.
        """
        taken: dict[str, list[list[float]]] = {way: [[] for _ in cases] for way in self.ways}
        for _ in range(rounds):
            for i, case in enumerate(cases):
                for way, answers in self.each(Way.ask, name, *case).items():
                    taken[way][i].append(max(answers))
        return {
            way: [
                [round(value, 3) for value in (min(each), statistics.median(each), max(each))]
                for each in taken[way]
            ]
            for way in self.ways
        }

    def close(self) -> None:
        """Ends all processes."""
        for way in self.ways.values():
            way.close()
