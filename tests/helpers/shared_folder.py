"""Files in shared memory that do not outlive the process that made them, however it ends.

The kernel removes nothing from /dev/shm when a process is killed. So a shell waits until this
process has ended, and then removes what it has left.
"""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

# A terminal's Ctrl-C and the end of a session must not end the shell before its parent.
_WAIT_AND_REMOVE = "trap '' HUP INT TERM; read -r _; rm -rf -- \"$1\""


@contextlib.contextmanager
def removed(path: str) -> Iterator[str]:
    """Removes a file or a folder at the end, or when this process is killed."""
    shell = subprocess.Popen(
        ("/bin/sh", "-c", _WAIT_AND_REMOVE, "sh", path),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with shell:  # closes the pipe, and waits for the shell
        yield path


@contextlib.contextmanager
def folder(prefix: str = "jax_cxl_test.") -> Iterator[str]:
    """Makes a folder in shared memory."""
    with removed(tempfile.mkdtemp(prefix=prefix, dir="/dev/shm")) as name:
        yield name
        shutil.rmtree(name)  # unlike the shell, raises an error if it cannot remove something
