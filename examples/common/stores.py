"""The store of an example."""

import os
import subprocess
import sys


def remove(where: str) -> None:
    """Removes the store of an earlier run, if it is in /dev/shm."""
    with_name = where.partition("?")[0]
    if with_name.startswith("shm:") and os.path.exists(f"/dev/shm/jax_cxl_store.{with_name[4:]}"):
        subprocess.run(
            [sys.executable, "-m", "jax_cxl", "store", "delete", with_name],
            check=True,
            stdout=subprocess.DEVNULL,
        )
