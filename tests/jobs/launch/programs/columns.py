"""Prints the width that this rank's line has on the launcher's terminal."""

import os

print(f"{os.environ.get('JAX_CXL_LAUNCH_COLUMNS', 'no')} columns", flush=True)
