"""Teams: sets of processes that measure different backends, one case each in turn.

NCCL reads which paths it may take from the environment, once in a process. Backends that need
different environments are therefore measured by different processes, on the same devices, all of
which are there from the start; a team waits without using its devices while another measures.
"""

import contextlib
import dataclasses
import json
import mmap
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

# Between GPUs NCCL takes NVLink or PCIe peer-to-peer copies, if it may, else memory of the host,
# else the network: here sockets on the loopback device, as processes on two hosts would.
_ENVIRONMENTS = {
    "nccl-shm": {"NCCL_P2P_DISABLE": "1"},
    "nccl-socket": {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
    },
    "nccl-nvlink": {},
}
_POLL_SECONDS = 1e-3


@dataclasses.dataclass(frozen=True)
class Team:
    """Processes, one a rank, and what they measure.

    Attributes:
      backends: names, as in backends.make.
      environment: variables that they need.
    """

    backends: list[str]
    environment: dict[str, str]


def of(baselines: Sequence[str]) -> list[Team]:
    """Returns the teams for jax_cxl and NCCL; jax_cxl shares a process with a baseline."""
    names = list(baselines)
    shares = [names.pop(0)] if names else []
    first = Team(["jax_cxl", *shares], _ENVIRONMENTS[shares[0]] if shares else {})
    return [first, *(Team([name], _ENVIRONMENTS[name]) for name in names)]


def run(teams: Sequence[Team], ranks: int, arguments: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Starts the teams and waits for them.

    Args:
      teams: what to start.
      ranks: processes of each.
      arguments: of `bench`, as the user gave them.

    Returns:
      The largest exit status, and what the teams measured: the header of the first one's results
      file with the results of all, also those of a run that SIGTERM cut short.
    """
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="jax_cxl_bench_") as folder:
        turn = pathlib.Path(folder) / "turn"
        turn.write_bytes(bytes(8))
        results = [pathlib.Path(folder) / f"{i}.json" for i in range(len(teams))]
        started = []
        try:
            for i, (team, result) in enumerate(zip(teams, results, strict=True)):
                place = f"{i}:{len(teams)}:{turn}"
                command = [
                    *(sys.executable, "-m", "jax_cxl.launch", "-n", str(ranks)),
                    *("--devices-per-process", "1", "--no-prefix", "-m", "jax_cxl", "bench"),
                    *arguments,
                    *("--team", ",".join(team.backends), "--turn", place, "--json", str(result)),
                ]
                # All teams hold memory of the same devices: none may take it all in advance.
                shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
                environment = os.environ | shared | team.environment
                started.append(subprocess.Popen(command, env=environment))
            status = _wait(started)
        except SystemExit as error:
            status = int(error.code or 1)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()
            signal.signal(signal.SIGTERM, before)
        found = [json.loads(path.read_text()) for path in results if path.exists()]
    if not found:
        return status or 1, {}
    rows = [row for part in found for row in part["results"]]
    # Side by side, as they were measured.
    cases = list(dict.fromkeys((row["op"], row["bytes"]) for row in rows))
    rows.sort(key=lambda row: cases.index((row["op"], row["bytes"])))
    return status, found[0] | {"results": rows}


def _wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """Waits until all have ended, or one has failed."""
    while True:
        states = [process.poll() for process in processes]
        if None not in states or any(states):
            return max(abs(state) for state in states if state is not None)
        time.sleep(0.05)


class Turns:
    """When a team measures: the turn is a counter in a file that all teams map."""

    def __init__(self, place: str):
        """Joins.

        Args:
          place: "index:number of teams:file", or "" for a team that is alone.
        """
        self._index, self._count, self._memory = 0, 1, mmap.mmap(-1, 8)
        if place:
            index, count, path = place.split(":", 2)
            self._index, self._count = int(index), int(count)
            with open(path, "r+b") as file:
                self._memory = mmap.mmap(file.fileno(), 8)

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Waits for the turn of this team, and passes it on afterwards; one process calls it."""
        while self._turn() % self._count != self._index:
            time.sleep(_POLL_SECONDS)
        yield
        struct.pack_into("<Q", self._memory, 0, self._turn() + 1)

    def _turn(self) -> int:
        return struct.unpack_from("<Q", self._memory, 0)[0]
