"""The kinds of pool memory. cc/pool/media opens them. docs/extending.md shows how to
add one."""

import os
from typing import NamedTuple


class Medium(NamedTuple):
    """A kind of memory.

    Attributes:
      in_dev_shm: whether a path is the name of a file in /dev/shm, which a job makes and removes.
        Other paths are absolute.
      is_device: whether a path is a device, which exists and has a size.
    """

    in_dev_shm: bool = False
    is_device: bool = False

    def path_bytes(self, path: str) -> int | None:
        """Returns the size of an existing path, None for a device that sysfs does not describe."""
        if not self.is_device:
            return os.stat(path).st_size
        try:
            with open(f"/sys/bus/dax/devices/{os.path.basename(path)}/size") as size:
                return int(size.read())
        except (OSError, ValueError):
            return None


MEDIA = {
    "shm": Medium(in_dev_shm=True),
    "file": Medium(),
    "dax": Medium(is_device=True),
}
