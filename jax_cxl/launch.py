"""Runs a script as several ranks on this machine: `python -m jax_cxl.launch -n 2 SCRIPT`.

`python -m jax_cxl.launch --help` explains the options. `launched()` returns whether this process is
such a rank.
"""

import sys

from jax_cxl._commands.launch.cli import main as main
from jax_cxl._job.launched.environment import launched as launched

if __name__ == "__main__":
    sys.exit(main())
