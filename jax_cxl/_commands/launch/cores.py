"""Which cores each rank gets with `--bind-cores`."""

import pathlib
from collections.abc import Collection

_TOPOLOGY = pathlib.Path("/sys/devices/system/cpu")


def share(available: Collection[int], rank: int, size: int) -> list[int]:
    """Returns the processors of one rank: an equal share, at least one, on adjacent cores."""
    # Sort by core, so that the two threads of a core stay together: their numbers are far apart.
    neighbors = sorted(available, key=lambda processor: (_place(processor), processor))
    first, last = (len(neighbors) * r // size for r in (rank, rank + 1))
    return neighbors[first:last]


def _place(processor: int) -> tuple[int, int]:
    folder = _TOPOLOGY / f"cpu{processor}" / "topology"
    try:
        package, core = (
            int((folder / name).read_text()) for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):
        return 0, 0
    return package, core
