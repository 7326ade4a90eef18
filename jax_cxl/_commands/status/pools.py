"""Finds the pools of this machine: pools of running jobs, which have no name, and pool files."""

import contextlib
import dataclasses
import glob
import os
import pathlib
import pwd
import stat

from jax_cxl import _core, errors
from jax_cxl._job import processes
from jax_cxl._job.pool import pool_uri

_SHM_PREFIX = "/dev/shm/jax_cxl."
_DAX_PREFIX = "/dev/dax"
_DELETED = " (deleted)"


@dataclasses.dataclass(frozen=True)
class Found:
    """A pool that can be read. One without a name has the path of a process's descriptor."""

    name: str
    path: str
    offset: int = 0

    def read(self) -> "_core.JobRecord":
        """Copies the pool's control pages. Raises PoolError."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, ProcessLookupError):
            if not self.path.startswith("/proc/"):
                raise
            pid = self.path.split("/")[2]
            raise errors.PoolNotFoundError(f"{self.name}: process {pid} has ended") from None
        try:
            return _core.read_job_record(fd, self.offset, self.name)
        finally:
            os.close(fd)

    def begins(self) -> bool:
        """Returns whether this is the job's first pool device, which holds the ranks' pages."""
        try:
            return self.read().extent_index == 0
        except (OSError, errors.CxlError):
            return True  # The caller gets the error when it reads the pool.


def _has_pool(path: str, offset: int) -> bool:
    """Returns whether a regular file has a pool at the offset. Never blocks."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "rb") as file:
                magic = _core.POOL_MAGIC
                return os.pread(file.fileno(), len(magic), offset) == magic
    return False


def _mapped_by(pid: int) -> dict[str, int]:
    """Returns the files and devices that a process maps shared, and the lowest offset in each."""
    offsets: dict[str, int] = {}
    try:
        lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return {}  # The process ended, or belongs to another user.
    for line in lines:
        # A line is, for example, `7f10-7f20 rw-s 00200000 00:05 12 /dev/dax0.0`.
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[1].startswith("rw-s"):
            offset = int(fields[2], 16)
            offsets[fields[5]] = min(offset, offsets.get(fields[5], offset))
    return offsets


def held_by(pid: int) -> list[Found]:
    """Returns the pools that a process has open: in /dev/shm, in files and on dax devices."""
    try:
        entries = sorted(os.listdir(f"/proc/{pid}/fd"), key=int)
    except OSError:
        return []  # The process ended, or belongs to another user.
    offsets = _mapped_by(pid)
    found: dict[str, Found] = {}
    for entry in entries:
        path = f"/proc/{pid}/fd/{entry}"
        with contextlib.suppress(OSError, errors.CxlError):  # The file was closed meanwhile.
            target = os.readlink(path)
            offset = offsets.get(target, 0)
            if target in found:
                continue
            if target.startswith(_DAX_PREFIX) and target in offsets:
                name = f"dax:{target}?offset={offset}" if offset else f"dax:{target}"
                pool = Found(name, target, offset)
                pool.read()  # Raises an error if there is no pool.
                found[target] = pool
            # A pool in /dev/shm need not be mapped: the launcher only has the pool's file open.
            elif (target in offsets or target.startswith(_SHM_PREFIX)) and _has_pool(path, offset):
                found[target] = Found(target.removesuffix(_DELETED), path, offset)
    return [pool for pool in found.values() if pool.begins()]


def _of_process(pid: int) -> list[Found]:
    """Returns the pools of a process, or of the processes that it has started."""
    try:
        os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        raise ValueError(
            f"there is no process {pid}. Without an argument the command finds all jobs"
        ) from None
    except PermissionError:
        raise ValueError(
            f"process {pid} belongs to {_owner(f'/proc/{pid}')}: only that user, or root, may look"
            " into its job"
        ) from None
    # If this process is the launcher, the processes that it has started have the pool.
    for each in (pid, *sorted(processes.descendants(pid))):
        if pools := held_by(each):
            return pools
    raise ValueError(
        f"no job found: process {pid} and the processes that it has started have no pool open."
        " Without an argument the command finds all jobs"
    )


def _owner(path: str) -> str:
    try:
        uid = os.stat(path).st_uid
    except OSError:
        return "another user"  # The file is gone by now.
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def of_this_user() -> list[Found]:
    """Returns the pools of running jobs, each once, and pools in /dev/shm whose jobs have ended."""
    running: dict[tuple[int, int, int], Found] = {}
    for entry in sorted(filter(str.isdecimal, os.listdir("/proc")), key=int):
        for pool in held_by(int(entry)):
            with contextlib.suppress(OSError):
                info = os.stat(pool.path)
                running.setdefault((info.st_dev, info.st_ino, pool.offset), pool)
    found = list(running.values())
    names = {pool.name for pool in found}
    for path in sorted(glob.glob(_SHM_PREFIX + "*")):
        with contextlib.suppress(OSError):  # The file is gone by now.
            ours = os.stat(path).st_uid == os.getuid()
            if path not in names and ours and _has_pool(path, 0):
                found.append(Found(path, path))
    return found


def named(target: str) -> list[Found]:
    """Returns the pools for a process id, a path or a pool URI."""
    if target.isdecimal():
        return _of_process(int(target))
    if target.startswith("/") or os.path.exists(target):
        mode = os.stat(target).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            raise ValueError(
                f"{target} is neither a file nor a device: name a pool URI, file, device or process"
            )
        return [Found(target, str(pathlib.Path(target).absolute()))]
    spec = pool_uri.parse(target)
    if not spec.in_dev_shm:
        return [Found(target, spec.paths[0], spec.offset)]
    name = _SHM_PREFIX + (spec.paths[0] if spec.paths else "")
    if os.path.exists(name) and not os.access(name, os.R_OK):
        raise ValueError(
            f"{name} belongs to {_owner(name)}, and you cannot read it: run this as that user or"
            " as root"
        )
    return [pool for pool in of_this_user() if pool.name == name]
