"""Shows a progress bar by carriage returns, with a line in between."""

import os
import sys
import time

if os.environ["JAX_CXL_LAUNCH_RANK"] == "0":
    for step in range(3):
        sys.stderr.write(f"\rstep {step}")
        sys.stderr.flush()
        time.sleep(0.2)
        if step == 1:
            print("a line", flush=True)
            # Two streams have no common order: without a pause the next step may come first.
            time.sleep(0.2)
    sys.stderr.write("\n")
