"""Loses processes, which the launcher restarts, and continues with their successors."""

import os
import signal
import time

import jax
import numpy as np
from absl import app, flags

import jax_cxl
from jax_cxl._job.pool import pools

_VICTIMS = flags.DEFINE_list("victims", ["0"], "Processes that are lost, all at once.")
_ON_THE_WAY = flags.DEFINE_bool("on_the_way", False, "The first successor is lost before it joins.")
_END = flags.DEFINE_bool("end", False, "The others end, and do not wait for successors.")
_POOL = flags.DEFINE_string("pool", None, "URI of the pool.")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sum_of_ranks() -> int:
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    total = jax.jit(
        jax.shard_map(
            lambda x: jax_cxl.psum(jax.lax.axis_index("i") * x, "i"),
            mesh=mesh, in_specs=jax.P(), out_specs=jax.P(),
        )
    )  # fmt: skip
    for _ in range(3):
        value = int(total(np.float32(1)))
    return value


def main(_) -> None:
    restarts = int(os.environ["JAX_CXL_LAUNCH_RESTARTS"])
    if _ON_THE_WAY.value and restarts == 1:
        pools.register = lambda *_: die()
    jax_cxl.initialize(_POOL.value)
    print(f"sum {sum_of_ranks()}", flush=True)
    if restarts == 0:
        if str(jax.process_index()) in _VICTIMS.value:
            die()
        if _END.value:
            time.sleep(0.3)  # The launcher restarts victims until another rank has ended.
            return
        try:
            while True:  # Until the victims are gone.
                sum_of_ranks()
        except jax_cxl.PeerLostError as error:
            print(f"lost rank {error.rank}", flush=True)
        jax_cxl.regroup(rejoin=True)
        print(f"sum {sum_of_ranks()}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    app.run(main)
