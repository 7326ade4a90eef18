"""Finds pools of this machine: those of running jobs, which have no name, and files."""

import contextlib
import dataclasses
import glob
import os
import pathlib
import stat

from jax_cxl import _core, _pool_uri

_SHM_PREFIX = "/dev/shm/jax_cxl."
_DELETED = " (deleted)"


@dataclasses.dataclass(frozen=True)
class Found:
    """A pool that can be read.

    Attributes:
      name: what to call it.
      path: what to open; for a pool without a name, a descriptor of a process that has it.
      offset: where the pool starts, in bytes.
    """

    name: str
    path: str
    offset: int = 0

    def read(self) -> "_core.Snapshot":
        """Copies the pool's control pages. Raises PoolError."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return _core.read_snapshot(fd, self.offset, self.name)
        finally:
            os.close(fd)


def held_by(pid: int) -> list[Found]:
    """Returns the pools in /dev/shm that a process has open."""
    try:
        entries = sorted(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return []  # It ended, or belongs to another user.
    found = {}
    for entry in entries:
        path = f"/proc/{pid}/fd/{entry}"
        with contextlib.suppress(OSError):  # It was closed meanwhile.
            target = os.readlink(path)
            if target.startswith(_SHM_PREFIX):
                found[target] = Found(target.removesuffix(_DELETED), path)
    return list(found.values())


def running() -> list[Found]:
    """Returns the pools of this user's running jobs, one for each job."""
    found: dict[tuple[int, int], Found] = {}
    for entry in sorted(filter(str.isdecimal, os.listdir("/proc")), key=int):
        for pool in held_by(int(entry)):
            try:
                info = os.stat(pool.path)
            except OSError:
                continue
            found.setdefault((info.st_dev, info.st_ino), pool)
    return list(found.values())


def left_behind() -> list[Found]:
    """Returns the pools of this user's dead jobs that have stayed in /dev/shm."""
    living = {pool.name for pool in running()}
    found = []
    for path in sorted(glob.glob(_SHM_PREFIX + "*")):
        with contextlib.suppress(OSError):  # It went away meanwhile.
            if path not in living and os.stat(path).st_uid == os.getuid():
                found.append(Found(path, path))
    return found


def named(target: str) -> list[Found]:
    """Returns the pools that a process id, a path or a pool's URI stands for.

    Raises:
      ValueError: it is none of them.
    """
    if target.isdecimal():
        return held_by(int(target))
    if target.startswith("/") or os.path.exists(target):
        mode = os.stat(target).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            raise ValueError(f"{target} is neither a file nor a device")
        return [Found(target, str(pathlib.Path(target).absolute()))]
    spec = _pool_uri.parse(target, world_size=1)
    if spec.kind != "shm":
        return [Found(target, spec.paths[0], spec.offset)]
    name = _SHM_PREFIX + (spec.paths[0] if spec.paths else "")
    return [pool for pool in running() + left_behind() if pool.name == name]
