"""Hosts JAX's coordination service, which ends with process 0 otherwise.

`python -m jax_cxl._launch.coordinator PARENT PORT SIZE`, started by the supervisor only. Where
process 0 has the service, JAX ends all other processes within a second of its death
(docs/decisions/0009). JAX has no public way to start the service alone.
"""

import os
import signal
import sys

from jax_cxl._launch import process


def main() -> None:
    """Serves until the supervisor ends it."""
    parent, port, size = map(int, sys.argv[1:4])
    process.die_with(parent, signal.SIGKILL)
    # The ranks are told to end by these, and need the service until they have.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # It warns that recoverability is experimental: read when the library is loaded.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from jaxlib import _jax

        start = _jax.get_distributed_runtime_service
    except (ImportError, AttributeError) as error:
        sys.exit(f"jax_cxl.launch: --go-on does not work with this jaxlib: {error}")
    # Recoverable: the death of a process is no reason to end the others.
    service = start(f"127.0.0.1:{port}", size, recoverable=True)
    while service is not None:
        signal.pause()


if __name__ == "__main__":
    main()
