"""A process of a job without the launcher: communicates, then fails or ends as --how says.

After it has communicated, it waits for its standard input to end.
"""

import os
import sys

import jax
import numpy as np
from absl import app, flags

import jax_cxl

_PROCESS = flags.DEFINE_integer("process", 0, "The number of this process.")
_PORT = flags.DEFINE_integer("port", None, "Port of the coordination service.")
_HOW = flags.DEFINE_enum("how", "end", ["end", "fail"], "How process 0 ends.")
_POOL = flags.DEFINE_string("pool", None, "URI of the pool.")


def main(_) -> None:
    jax.distributed.initialize(f"127.0.0.1:{_PORT.value}", 2, _PROCESS.value)
    jax_cxl.initialize(_POOL.value)
    mesh = jax_cxl.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    total = jax.jit(
        jax.shard_map(
            lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P(), out_specs=jax.P()
        )
    )
    total(np.float32(1)).block_until_ready()
    print("ready", flush=True)
    sys.stdin.read()
    if _HOW.value == "fail":
        try:
            total(np.float32(1)).block_until_ready()
        except jax_cxl.PeerLostError:
            jax_cxl.shutdown()
            os._exit(3)  # A normal exit would wait for the lost process in jax.distributed.


if __name__ == "__main__":
    app.run(main)
