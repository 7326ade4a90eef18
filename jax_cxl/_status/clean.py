"""The command line of `python -m jax_cxl clean`."""

import argparse
import glob
import os
from collections.abc import Sequence

from jax_cxl import _core

_DESCRIPTION = """\
Removes the pools that dead jobs have left in /dev/shm, if they are yours.

A job leaves one only if it fails and its pool's URI says keep=on-failure, or if it is killed within
the moment between creating its pool and taking its name away; the next job removes it, too.
Pools of living jobs are locked, and stay."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 0."""
    argparse.ArgumentParser(
        prog="python -m jax_cxl clean",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    before = _files()
    _core.sweep_leftovers()
    after = _files()
    removed = sorted(before.keys() - after.keys())
    for path in removed:
        print(f"removed {path} ({before[path] / 2**20:.1f} MiB)")
    for path in sorted(after):
        print(f"left {path}: a living job or another user has it")
    if not removed:
        print("nothing to remove")
    return 0


def _files() -> dict[str, int]:
    """Returns the pools that have a name, and their sizes in bytes."""
    sizes = {}
    for path in glob.glob("/dev/shm/jax_cxl.*"):
        try:
            sizes[path] = os.stat(path).st_size
        except OSError:
            continue
    return sizes
