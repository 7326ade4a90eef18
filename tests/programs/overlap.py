"""Process 0 computes while a collective that it has started is under way.

Process 1 joins the collective only after the computation. So the job ends only if the collective
and the computation do not keep each other from starting. Prints what happened, in order.
"""

import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import jax_cxl

_PATIENCE_S = 100


def wait_until(condition):
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("nothing happens")
        time.sleep(0.001)


def main(signal):
    jax_cxl.initialize()
    first = jax.process_index() == 0

    warm = None

    def compute(x):
        if first and warm is not None:
            wait_until(lambda: jax_cxl.stats().calls > warm.calls)
            # `seconds` includes the time of a call only after the call has ended. If it has not
            # grown, the call still runs.
            if jax_cxl.stats().seconds == warm.seconds:
                print("process 0 computes while its collective is under way", flush=True)
            open(signal, "w").close()
        return x

    def body(x):
        future = jax_cxl.start(jax_cxl.psum, x, "i")
        meanwhile = jax.pure_callback(compute, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        # If a program has only a handful of operations, XLA runs them one after the other. These
        # operations make it longer, so that XLA starts each one once its operands are there.
        more = sum(jnp.sort(x * (k + 1)) for k in range(12))
        return future.done() + meanwhile + 0 * more

    mesh = jax_cxl.make_mesh((jax.device_count(),), ("i",), axis_types=(AxisType.Auto,))
    spec = jax.P("i")
    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    x = jax.make_array_from_callback(
        (jax.device_count() * 5000,),
        jax.NamedSharding(mesh, spec),
        lambda index: np.arange(jax.device_count() * 5000, dtype=np.float32)[index],
    )
    jax.block_until_ready(step(x))
    warm = jax_cxl.stats()
    if not first:
        wait_until(lambda: os.path.exists(signal))
        print("process 1 joins", flush=True)
    y = np.asarray(step(x).addressable_shards[0].data)
    total = np.arange(jax.device_count() * 5000, dtype=np.float32).reshape(-1, 5000).sum(0)
    np.testing.assert_array_equal(y - np.asarray(x.addressable_shards[0].data), total)
    print("right", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
