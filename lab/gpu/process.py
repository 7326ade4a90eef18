"""Runs a stage's commands inside its time limit."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

Record = dict[str, Any]

# How many characters to keep from the beginning and from the end of a failed command's output.
_HEAD, _TAIL = 3000, 5000
# Seconds between asking a program to end and killing it. They have to be more than the 3 seconds
# that the launcher gives its ranks.
_GRACE_SECONDS = 10


def _shortened(text: str) -> str:
    if len(text) <= _HEAD + _TAIL:
        return text
    return f"{text[:_HEAD]}\n[...]\n{text[-_TAIL:]}"


class StageError(Exception):
    """A stage failed or ran out of time. `record` has its results up to that moment."""

    def __init__(self, status: str, **record: object):
        super().__init__(status)
        self.status = status
        self.record = record


@dataclasses.dataclass
class Suite:
    """The data that all stages share.

    Attributes:
      root: the checkout.
      build: folder of the CMake build.
      ranks: number of GPUs to use.
      platform: "cuda", or "cpu" to try the suite itself.
      gpus: number of GPUs of the machine. If there are fewer GPUs than ranks, all ranks share one
        GPU.
      deadline: the time.monotonic() at which the running stage has to end.
    """

    root: pathlib.Path
    build: pathlib.Path
    ranks: int
    platform: str = "cuda"
    gpus: int = 0
    deadline: float = 0.0

    def run(self, *command: str, check: bool = True, **environment: str) -> tuple[str, bool]:
        """Runs a command in the checkout; kills it, with its children, at the deadline.

        Args:
          command: program and arguments.
          check: whether to raise an error if the command fails. If not, its output is returned.
          environment: variables besides those of this process.

        Returns:
          Its standard output, and whether it ended by itself with status 0.

        Raises:
          StageError: the command failed or ran out of time.
        """
        # A collective that hangs then raises an error after a minute, before the stage's deadline.
        timeout = {"JAX_CXL_TIMEOUT": "60"}
        base = {"PYTHONPATH": str(self.root), "PYTHONUNBUFFERED": "1"}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=self.root,
                    env={**timeout, **os.environ, **base, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise StageError("failed", stderr=str(error)) from error
            status = "failed"
            try:
                process.wait(max(self.deadline - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                status = "out of time"
                # At SIGTERM, the launcher ends its ranks, and the benchmark writes the results that
                # it has.
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(_GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read())
        good = process.returncode == 0 and status == "failed"
        if check and not good:
            raise StageError(
                status,
                command=" ".join(command),
                returncode=process.returncode,
                stdout=_shortened(texts[0]),
                stderr=_shortened(texts[1]),
            )
        if not good:
            print(f"          {status}: {_shortened(texts[1])}", flush=True)
        return texts[0], good

    @property
    def shares_gpu(self) -> bool:
        """Whether all ranks run on one GPU."""
        return self.platform == "cuda" and self.gpus < self.ranks

    def launch(self, *command: str, processes: int = 0, **options) -> tuple[str, bool]:
        """Runs a Python program under the launcher, by default in one process for each rank.

        Args:
          command: the program and its arguments.
          processes: how many processes, which share the ranks; 0: one for each rank.
          **options: of `run`.
        """
        processes = processes or self.ranks
        devices = self.ranks // processes
        return self.run(
            *(sys.executable, "-m", "jax_cxl.launch", "-n", str(processes), "--no-prefix"),
            *("--devices-per-process", str(devices)),
            *command,
            JAX_PLATFORMS=self.platform,
            XLA_PYTHON_CLIENT_PREALLOCATE="false",
            **({"JAX_LOCAL_DEVICE_IDS": "0"} if self.shares_gpu else {}),
            MATRIX_RANKS=str(self.ranks),
            **({"CUDA_MODULE_LOADING": "EAGER"} if devices > 1 else {}),
            **options,
        )
