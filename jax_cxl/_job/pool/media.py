"""The kinds of pool memory. cc/pool/media opens them. docs/extending/pool_memory.md shows how to
add one."""

import os
import pathlib
from typing import NamedTuple

_SHARED_OPTIONS = ("size", "offset", "coherence", "gpu_writes")


class Medium(NamedTuple):
    """A kind of memory.

    Attributes:
      example: a URI.
      options: the options of its URIs.
      coherence: how stores reach the other hosts, unless the URI names the coherence.
      in_dev_shm: whether a path is the name of a file in /dev/shm. A job makes such a file, may
        choose its name and its size, and removes it. Other paths are absolute.
      is_device: whether a path is a device. Jobs do not make or remove devices, and each device
        already has a size.
    """

    example: str
    options: tuple[str, ...]
    coherence: str = "coherent"
    in_dev_shm: bool = False
    is_device: bool = False

    def path_bytes(self, path: str) -> int | None:
        """Returns the size of an existing path, None for a device that sysfs does not describe."""
        if not self.is_device:
            return os.stat(path).st_size
        size = pathlib.Path("/sys/bus/dax/devices", os.path.basename(path), "size")
        try:
            return int(size.read_text())
        except (OSError, ValueError):
            return None


MEDIA = {
    "shm": Medium(
        "shm:my_job?size=1GiB&devices=6", (*_SHARED_OPTIONS, "devices", "keep"), in_dev_shm=True
    ),
    "file": Medium(
        "file:/mnt/pool/a,/mnt/pool/b?size=1GiB&offset=4KiB", (*_SHARED_OPTIONS, "devices")
    ),
    "dax": Medium(
        "dax:/dev/dax0.0,/dev/dax1.0?offset=2MiB", _SHARED_OPTIONS, "flush", is_device=True
    ),
}
