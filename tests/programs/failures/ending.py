"""Communicates once, and then ends, or waits to be ended, as --how says."""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import jax
import sum_of_ranks
from absl import app, flags

import jax_cxl
from jax_cxl._job import platforms
from jax_cxl._job.pool import pool_uri, pools


def raise_exit() -> NoReturn:
    raise SystemExit(3)


def catch_exit() -> NoReturn:
    try:
        sys.exit(3)
    except SystemExit:
        sys.exit()


def shut_down() -> NoReturn:
    jax_cxl.shutdown()
    time.sleep(600)
    raise AssertionError("nobody ended this process")


# How rank 1 leaves while rank 0 waits for it in a collective.
LEAVE: dict[str, Callable[[], NoReturn]] = {
    "os_exit": lambda: os._exit(3),
    "sys_exit": lambda: sys.exit(3),
    "message": lambda: sys.exit("no such file"),
    "raise_exit": raise_exit,
    "catch_exit": catch_exit,
    "shut_down": shut_down,
}
_HOW = flags.DEFINE_enum(
    "how",
    "normal",
    ["normal", "exception", "kill_one", "kill_a_creator", "wait", *LEAVE],
    "How to end.",
)
_POOL = flags.DEFINE_string("pool", None, "URI of the pool.")


def main(_) -> None:
    jax_cxl.initialize(_POOL.value)
    total = sum_of_ranks.compile_sum()
    n = jax.device_count()
    assert total() == n * (n - 1) // 2
    # The test waits for this line, so it must not stay in a buffer.
    print("communicated", flush=True)
    if _HOW.value == "exception" and jax.process_index() == 1:
        raise RuntimeError("on purpose")
    if _HOW.value in ("kill_one", "kill_a_creator") and jax.process_index() == 1:
        if _HOW.value == "kill_a_creator":
            kept = pools.create(pool_uri.parse(_POOL.value), platforms.CPU, new_name=True)
            print(f"created {kept[1]['paths']}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if leave := LEAVE.get(_HOW.value):
        if jax.process_index() == 1:
            leave()
        start = time.monotonic()
        try:
            total().block_until_ready()
        except jax_cxl.errors.CxlError as error:
            seconds = time.monotonic() - start
            print(f"after {seconds:.3f} s: {type(error).__name__}: {error}", flush=True)
            # At a normal exit, jax.distributed would wait for the lost process.
            os._exit(7)
    if _HOW.value in ("kill_one", "kill_a_creator", "wait"):
        time.sleep(600)


if __name__ == "__main__":
    app.run(main)
