"""Hosts JAX's coordination service, so that it does not end with process 0.

The supervisor starts `python -m jax_cxl._commands.launch.coordinator PARENT PORT SIZE`. If process
0 hosts the service, JAX ends all other processes within a second after the death of process 0
(docs/decisions/0009). JAX has no public function that starts only the service.
"""

import os
import signal
import sys

from jax_cxl._job import processes


def main() -> None:
    """Serves until the supervisor ends this process."""
    parent, port, size = map(int, sys.argv[1:4])
    processes.die_with(parent, signal.SIGKILL)
    # Ignore the signals that tell the ranks to end: they need the service until they have ended.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # This variable hides a warning that recoverability is experimental. jaxlib reads the variable
    # when it is loaded.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from jaxlib import _jax

        start = _jax.get_distributed_runtime_service
    except (ImportError, AttributeError) as error:
        sys.exit(f"jax_cxl.launch: --go-on does not work with this jaxlib: {error}")
    # Recoverable: the death of a process does not end the others.
    service = start(f"127.0.0.1:{port}", size, recoverable=True)
    while service is not None:
        signal.pause()


if __name__ == "__main__":
    main()
