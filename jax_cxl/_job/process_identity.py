"""Identifies a process to processes of this host and of other hosts.

cc/base/process_identity.h does the same in C++. Host names do not suffice, because two hosts may
have the same name.
"""

import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any


@functools.cache
def boot_id() -> str:
    """Returns the boot id of this kernel, "" if it is not known."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@functools.cache
def pid_namespace() -> int:
    """Returns the inode of this process's pid namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def on_this_kernel(who: Mapping[str, Any]) -> bool:
    """Whether the process with the "boot_id" in `who` runs under this kernel."""
    return who["boot_id"] == boot_id() != ""


def pid_means_the_same(who: Mapping[str, Any]) -> bool:
    """Whether the pid in `who` names the same process in this process's pid namespace."""
    return on_this_kernel(who) and who["pid_namespace"] == pid_namespace()


def stat_of(pid: int) -> list[bytes]:
    """Returns the fields of a process's /proc/PID/stat, from its state on; [] once it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # pid (name) state parent ...; the name may hold spaces and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in (b"Z", b"X") else fields


def start_of(pid: int) -> int:
    """Returns when a process began, in the kernel's ticks; 0 once it has ended."""
    fields = stat_of(pid)
    return int(fields[19]) if fields else 0
