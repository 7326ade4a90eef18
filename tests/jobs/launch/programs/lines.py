"""Prints long lines in small pieces to both streams, and then a line without a line break.

With the argument "fail" rank 0 fails with status 7, and the others sleep.
"""

import os
import sys
import time

rank = int(os.environ["JAX_CXL_LAUNCH_RANK"])
if "fail" in sys.argv and rank > 0:
    time.sleep(600)
letter = "abcd"[rank]
for stream in (sys.stdout, sys.stderr):
    for length in (1, 5000, 300_000):
        # os.write bypasses Python's buffers, so each piece goes into the pipe by itself.
        data = (letter * length + "\n").encode()
        while data:
            data = data[os.write(stream.fileno(), data[:7000]) :]
    os.write(stream.fileno(), b"end")
if "fail" in sys.argv:
    sys.exit(7)
