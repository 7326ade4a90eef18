"""Runs one way of a benchmark in a process of its own, with a limit for the memory of GPUs."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any


def run(
    script: str, options: argparse.Namespace, more: Sequence[str], end: float
) -> dict[str, Any]:
    """Returns the row that a script prints, or why it failed.

    Args:
      script: the script.
      options: its options; `limit_gib` is the memory of each GPU that it may use.
      more: arguments after those of this process.
      end: by the monotonic clock, the time at which it should have ended.
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
