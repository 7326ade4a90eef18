"""Lets rank 1 end before a collective, and prints the errors of the other ranks.

--surface chooses the call of JAX that raises the error.
"""

import json
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl

_SURFACES = {
    "block_until_ready": lambda y: y.block_until_ready(),
    "jax.block_until_ready": jax.block_until_ready,
    "np.asarray": np.asarray,
    "device_get": jax.device_get,
    "float": float,
    "another_program": lambda y: jax.jit(jnp.sin)(y).block_until_ready(),
}
_SURFACE = flags.DEFINE_enum("surface", "float", _SURFACES, "Where the error is to surface.")
_STUCK = flags.DEFINE_bool("stuck", False, "Rank 1 lives on, but never calls the collective.")


def main(_) -> None:
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    total = jax.jit(
        jax.shard_map(
            lambda: jax_cxl.psum(jax.lax.axis_index("i").astype(jnp.float32), "i"),
            mesh=mesh, in_specs=(), out_specs=jax.P(),
        )
    )  # fmt: skip
    total().block_until_ready()
    if jax.process_index() == 1:
        if _STUCK.value:
            time.sleep(60)
        os._exit(0)
    surface = _SURFACES[_SURFACE.value]
    caught = []
    # The first time, the error comes with the result. After that, it comes when a program starts.
    for _ in range(2):
        start = time.monotonic()
        try:
            surface(total())
        except jax_cxl.CxlError as error:
            facts = {
                name: getattr(error, name, None) for name in ("rank", "pid", "host", "last", "call")
            }
            caught.append(
                {
                    "kind": type(error).__name__,
                    "jax": isinstance(error, jax.errors.JaxRuntimeError),
                    "lost": isinstance(error, jax_cxl.PeerLostError),
                    "timeout": isinstance(error, jax_cxl.CollectiveTimeoutError),
                    "seconds": time.monotonic() - start,
                    "text": str(error),
                    **facts,
                }
            )
    print("caught " + json.dumps(caught), flush=True)
    # At a normal exit, jax.distributed would wait for the lost process.
    os._exit(0)


if __name__ == "__main__":
    app.run(main)
