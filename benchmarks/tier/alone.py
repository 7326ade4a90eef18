"""Runs each way of a benchmark in a process of its own, with a limit for the memory of GPUs."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any


def add_options(parser: argparse.ArgumentParser, ways: Sequence[str]) -> None:
    """Adds the options of all benchmarks in this folder. `ways` are the ways to choose from."""
    parser.add_argument("--steps", type=int, default=10, help="measured steps (default: 10)")
    parser.add_argument("--limit-gib", type=float, help="memory of each GPU that may be used")
    parser.add_argument("--ways", default=",".join(ways), help="default: all")
    parser.add_argument("--seconds", type=float, default=270, help="begins nothing after this time")
    parser.add_argument("--folder", default="/dev/shm", help="of the pool")
    parser.add_argument("--one", choices=ways, help=argparse.SUPPRESS)


def run(
    script: str, options: argparse.Namespace, more: Sequence[str], end: float
) -> dict[str, Any]:
    """Runs a script in a new process; returns the row that it prints, or why it failed.

    Args:
      script: path of the script.
      options: the options of this process. `limit_gib` is how much memory of each GPU the script
        may use.
      more: arguments for the script. They follow the arguments of this process.
      end: the time.monotonic() at which the script should have ended.
    """
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if options.limit_gib:
        environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{options.limit_gib / _gpu_gib():.4f}"
    command = [sys.executable, script, *sys.argv[1:], *more]
    left = max(10.0, end - time.monotonic() + 20)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=left, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": "no time"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "RESOURCE_EXHAUSTED" in line]
        return {"failed": (errors or lines or [str(done.returncode)])[-1][:300]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _gpu_gib() -> float:
    query = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    text = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return float(text.splitlines()[0]) / 1024
