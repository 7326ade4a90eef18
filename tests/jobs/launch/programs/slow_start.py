"""Waits; a launcher that has to start many ranks of this is still at it for a while."""

import time

time.sleep(60)
