"""Runs a stage's commands inside its time limit."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

# Of what a command printed: what failed first, and what it came to.
_HEAD, _TAIL = 3000, 5000
# From asking a program to end to killing it; the launcher gives its ranks 3.
_GRACE_SECONDS = 10


def _shortened(text: str) -> str:
    if len(text) <= _HEAD + _TAIL:
        return text
    return f"{text[:_HEAD]}\n[...]\n{text[-_TAIL:]}"


class StageError(Exception):
    """A stage that failed, or ran out of time, and what it had found by then."""

    def __init__(self, status: str, **record: object):
        super().__init__(status)
        self.status = status
        self.record = record


@dataclasses.dataclass
class Suite:
    """What all stages share.

    Attributes:
      root: the checkout.
      build: folder of the CMake build.
      ranks: GPUs to use, one process each.
      platform: "cuda", or "cpu" to try the suite itself.
      deadline: when the stage that runs has to end, by time.monotonic().
    """

    root: pathlib.Path
    build: pathlib.Path
    ranks: int
    platform: str = "cuda"
    deadline: float = 0.0

    def run(self, *command: str, check: bool = True, **environment: str) -> tuple[str, bool]:
        """Runs a command in the checkout; kills it, with its children, at the deadline.

        Args:
          command: program and arguments.
          check: whether a failure is an error; else what it printed is returned anyway.
          environment: variables besides those of this process.

        Returns:
          What it printed on the standard output, and whether it ended by itself with status 0.

        Raises:
          StageError: it failed, or ran out of time.
        """
        # A collective that hangs has time to say so.
        patience = {"JAX_CXL_TIMEOUT": "60"}
        base = {"PYTHONPATH": str(self.root), "PYTHONUNBUFFERED": "1"}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=self.root,
                    env={**patience, **os.environ, **base, **environment},
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
                # The launcher then ends its ranks, and the benchmark writes what it has.
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

    def launch(self, *command: str, processes: int = 0, **options) -> tuple[str, bool]:
        """Runs a Python program as one process a GPU, or as `processes` that share the GPUs."""
        processes = processes or self.ranks
        return self.run(
            *(sys.executable, "-m", "jax_cxl.launch", "-n", str(processes), "--no-prefix"),
            *("--devices-per-process", str(self.ranks // processes)),
            *command,
            JAX_PLATFORMS=self.platform,
            XLA_PYTHON_CLIENT_PREALLOCATE="false",
            MATRIX_RANKS=str(self.ranks),
            **({"CUDA_MODULE_LOADING": "EAGER"} if processes < self.ranks else {}),
            **options,
        )
