"""Waits, so that a launcher needs a while to start many ranks of this program."""

import time

time.sleep(60)
