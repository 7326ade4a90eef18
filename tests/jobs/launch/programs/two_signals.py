"""Sends two signals to a waiting launcher, the second after the first has been passed on."""

import os
import signal
import sys

from jax_cxl._commands.launch import cli

signals = [signal.SIGINT]
parent = os.getpid()
for _ in range(int(sys.argv[1])):
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    if (child := os.fork()) == 0:
        signal.sigwait(signals)
        os.kill(parent, signal.SIGINT)
        signal.sigwait(signals)
        os._exit(7)
    os.kill(parent, signal.SIGINT)
    assert cli._wait(child, signals) == 7
