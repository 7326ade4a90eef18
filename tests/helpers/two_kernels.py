"""Starts processes that look like processes of two hosts, each with a kernel of its own.

`unshare` gives a process its own host name, process ids and mounts. JAX and jax_cxl tell kernels
apart by the boot id, which a bind mount replaces with another. There is still only one kernel, so
the processes share advisory locks and clocks.
"""

import functools
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_ENTER = """
set -e
hostname "$2"
mount --bind "$1" /proc/sys/kernel/random/boot_id
shift 2
exec "$@"
"""


class Hosts:
    """Two hosts of the same name, localhost, because Gloo has to resolve the name."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()

    def close(self) -> None:
        self._folder.cleanup()

    def command(self, host: int, *command: str, name: str = "localhost") -> list[str]:
        """Returns the command that runs `command` on a host."""
        boot_id = pathlib.Path(self._folder.name, f"boot_id{host}")
        boot_id.write_text(f"0000000{host}-0000-4000-8000-{os.getpid():012d}\n")
        return [
            *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *("sh", "-c", _ENTER, "sh", str(boot_id), name, *command),
        ]

    def start(self, host: int, *command: str, **options) -> subprocess.Popen[str]:
        """Starts a command on a host; its input, output and errors are pipes."""
        return subprocess.Popen(
            self.command(host, *command),
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )


def free_port() -> int:
    """Returns a port on which nothing listens."""
    with socket.socket() as reservation:
        reservation.bind(("127.0.0.1", 0))
        return reservation.getsockname()[1]


@functools.cache
def missing() -> str:
    """Returns why this machine cannot emulate two hosts, "" if it can."""
    if shutil.which("unshare") is None:
        return "needs unshare (util-linux)"
    hosts = Hosts()
    tried = subprocess.run(
        hosts.command(1, "cat", _BOOT_ID), capture_output=True, text=True, check=False
    )
    hosts.close()
    if tried.returncode == 0 and tried.stdout.startswith("00000001-"):
        return ""
    return f"needs the rights to make namespaces: {tried.stderr.strip()}"
