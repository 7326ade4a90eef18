"""The command `python -m jax_cxl status`."""

import os
import subprocess
import sys


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m jax_cxl status` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "jax_cxl", "status", *arguments],
        env={**os.environ, "COLUMNS": "200"},  # no line of the table is wrapped
        capture_output=True,
        text=True,
    )
