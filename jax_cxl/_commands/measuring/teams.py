"""Teams: sets of processes that measure different backends in turn, case by case.

Once per process, NCCL reads from the environment which paths it may use. So backends that need
different environments are measured by different processes on the same devices. All processes run
from the start. A team waits, without using its devices, while another team measures.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

# Between GPUs, NCCL prefers NVLink or PCIe peer-to-peer copies, then host memory, and then the
# network. Each of these environments turns off what NCCL would prefer to the path that is measured.
# The network consists of sockets on the loopback device.
_ENVIRONMENTS = {
    "nccl-shm": {"NCCL_P2P_DISABLE": "1"},
    "nccl-socket": {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
    },
}
_POLL_SECONDS = 1e-3


def of(baselines: Sequence[str]) -> list[list[str]]:
    """Returns the backends of each team: jax_cxl and the first baseline, then one baseline each."""
    return [["jax_cxl", *baselines[:1]], *([name] for name in baselines[1:])]


def run(
    teams: Sequence[Sequence[str]], ranks: int, arguments: Sequence[str]
) -> tuple[int, dict[str, Any]]:
    """Starts the teams and waits for them.

    Args:
      teams: the backends of each team.
      ranks: number of processes of each team.
      arguments: arguments of `bench`, as the user gave them.

    Returns:
      The largest exit status, and the contents of a results file: the head of the first team's
      file, and the results of all teams. If SIGTERM ends the run early, these are the results up to
      that moment.
    """
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="jax_cxl_bench_") as folder:
        turns = pathlib.Path(folder) / "turns"
        turns.touch()
        results = [pathlib.Path(folder) / f"{i}.json" for i in range(len(teams))]
        started = []
        try:
            for i, (team, result) in enumerate(zip(teams, results, strict=True)):
                place = f"{i}:{len(teams)}:{turns}"
                command = [
                    *(sys.executable, "-m", "jax_cxl.launch", "-n", str(ranks)),
                    *("--devices-per-process", "1", "--no-prefix", "-m", "jax_cxl", "bench"),
                    *arguments,
                    *("--team", ",".join(team), "--turn", place, "--json", str(result)),
                ]
                # All teams use memory of the same devices, so none may allocate all of it at once.
                shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
                environment = os.environ | shared | _ENVIRONMENTS.get(team[-1], {})
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
    # Put the results of one case next to each other.
    cases = list(dict.fromkeys((row["op"], row["bytes"]) for row in rows))
    rows.sort(key=lambda row: cases.index((row["op"], row["bytes"])))
    return status, found[0] | {"results": rows}


def _wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """Waits until all processes have ended or one has failed. Returns the largest exit status."""
    while True:
        states = [process.poll() for process in processes]
        if None not in states or any(states):
            return max(abs(state) for state in states if state is not None)
        time.sleep(0.05)


@contextlib.contextmanager
def turn(place: str) -> Iterator[None]:
    """Runs the body of a `with` statement in this team's turn. One process of the team calls it.

    Args:
      place: "index:number of teams:file", or "" for a single team. Each turn adds a byte to the
        file, so the file's size tells which team may measure.
    """
    if not place:
        yield
        return
    index, count, path = place.split(":", 2)
    while os.path.getsize(path) % int(count) != int(index):
        time.sleep(_POLL_SECONDS)
    yield
    with open(path, "ab") as file:
        file.write(b".")
