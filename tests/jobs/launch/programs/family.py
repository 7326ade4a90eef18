"""Starts processes that a launcher could lose, prints "ready", and sleeps unless told to end."""

import os
import signal
import subprocess
import sys
import time

STUBBORN = """
import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""

rank = os.environ["JAX_CXL_LAUNCH_RANK"]
# One child is in the rank's process group. The other one has a session of its own, so killpg does
# not reach it.
for new_session in (False, True):
    child = subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        stdout=subprocess.PIPE,
        start_new_session=new_session,
    )
    assert child.stdout is not None
    child.stdout.readline()
if "stubborn" in sys.argv:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
if "end" not in sys.argv:
    time.sleep(600)
