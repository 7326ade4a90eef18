"""The command line of `python -m jax_cxl clean`."""

import glob
import os
from collections.abc import Sequence

from jax_cxl import _core, _text
from jax_cxl._commands import option_types

_DESCRIPTION = """\
Removes your pools in /dev/shm whose jobs have ended.

A job leaves its pool only in two cases: it fails and the URI of the pool says keep=on-failure, or
it is killed in the moment between the creation of the pool and the removal of its name. The next
job removes such a pool too. Pools of living jobs are locked, and stay. A file that is not a pool
also stays, whatever its name is."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 0."""
    option_types.command("clean", _DESCRIPTION).parse_args(arguments)
    sizes = _files()
    removed = sorted(_core.sweep_leftovers())
    for path in removed:
        print(f"removed {_text.printable(path)} ({sizes.get(path, 0) / 2**20:.1f} MiB)")
    for path in sorted(_files()):
        name = _text.printable(path)
        print(f"kept {name}: it belongs to a living job or to another user, or is not a pool")
    if not removed:
        print("nothing to remove")
    return 0


def _files() -> dict[str, int]:
    """Returns the files that have names of pools, and their sizes in bytes."""
    sizes = {}
    for path in glob.glob("/dev/shm/jax_cxl.*"):
        try:
            sizes[path] = os.stat(path).st_size
        except OSError:
            continue
    return sizes
