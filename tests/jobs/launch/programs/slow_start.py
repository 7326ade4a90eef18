"""Waits, so that a launcher takes a while to start many ranks of it."""

import time

time.sleep(60)
