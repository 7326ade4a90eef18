"""Runs processes without the launcher. The last one does not join the job; --how chooses why.

With --how=chain there are three processes. The last one dies while it waits for process 0. Process
1 gives up because of that, and only then does process 0 come. With --how=again the last process
corrects its settings, and all processes initialize again.
"""

import os
import signal
import time

import jax
from absl import app, flags

import jax_cxl
from jax_cxl._job.meeting import arrival, meetings

_PROCESS = flags.DEFINE_integer("process", 0, "The number of this process.")
_PORT = flags.DEFINE_integer("port", None, "Port of the coordination service.")
_HOWS = ("die", "end", "raise", "refuse", "late", "come", "chain", "version", "count", "again")
_HOW = flags.DEFINE_enum("how", "die", _HOWS, "What the last process does.")


def main(_) -> None:
    processes = 3 if _HOW.value == "chain" else 2
    told = 3 if _HOW.value == "count" and _PROCESS.value else processes
    jax.distributed.initialize(f"127.0.0.1:{_PORT.value}", told, _PROCESS.value)
    if _HOW.value == "chain":
        jax.devices()
        time.sleep(0 if _PROCESS.value else 4)
    if _PROCESS.value == processes - 1:
        if _HOW.value == "chain":
            arrival.wait_for = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        if _HOW.value == "die":  # Once it has come, before it has a pool.
            meetings.come_together = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        if _HOW.value == "end":
            return
        if _HOW.value == "raise":
            raise ValueError("on purpose")
        if _HOW.value in ("refuse", "again"):
            os.environ["JAX_CXL_TIMEOUT"] = "nan"
        if _HOW.value == "version":
            arrival._versions = lambda: "jax_cxl 0.1.0, jax 0.1.0, jaxlib 0.1.0"
        if _HOW.value == "late":
            time.sleep(600)
    if _HOW.value == "again":
        try:
            jax_cxl.initialize()
        except (jax_cxl.NotInitializedError, ValueError):
            os.environ.pop("JAX_CXL_TIMEOUT", None)
    try:
        jax_cxl.initialize()
        print("initialized", flush=True)
    except jax_cxl.NotInitializedError as error:
        print(f"caught {error}", flush=True)
        os._exit(3)  # A normal exit would wait for the other process in jax.distributed.


if __name__ == "__main__":
    app.run(main)
