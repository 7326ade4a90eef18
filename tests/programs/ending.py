"""Communicates once and then ends, or waits to be ended, as --how says."""

import os
import signal
import time

import jax
import jax.numpy as jnp
from absl import app, flags

import jax_cxl

_HOW = flags.DEFINE_enum(
    "how", "normal", ["normal", "exception", "kill_one", "wait", "leave_one"], "How to end."
)
_POOL = flags.DEFINE_string("pool", None, "URI of the pool.")


def main(_) -> None:
    jax_cxl.initialize(_POOL.value)
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    total = jax.jit(
        jax.shard_map(
            lambda: jax_cxl.psum(jax.lax.axis_index("i"), "i"),
            mesh=mesh, in_specs=(), out_specs=jax.P(),
        )
    )  # fmt: skip
    n = jax.device_count()
    assert total() == n * (n - 1) // 2
    # The launcher may lag behind: flushed, so that the test knows that the job runs.
    print("communicated", flush=True)
    if _HOW.value == "exception" and jax.process_index() == 1:
        raise RuntimeError("on purpose")
    if _HOW.value == "kill_one" and jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if _HOW.value == "leave_one":
        # Ends rank 1's process while rank 0 waits for it in a collective.
        if jax.process_index() == 1:
            os._exit(0)
        start = time.monotonic()
        try:
            jnp.asarray(total()).block_until_ready()
        except jax_cxl.PeerLostError as error:
            print(f"after {time.monotonic() - start:.3f} s: {error}", flush=True)
            # jax.distributed would wait for the lost process at exit.
            os._exit(7)
    if _HOW.value in ("kill_one", "wait"):
        time.sleep(600)


if __name__ == "__main__":
    app.run(main)
