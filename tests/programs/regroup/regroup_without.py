"""Two ranks regroup without the third one, which lives but does not call `regroup`."""

import pathlib
import time

import jax
import numpy as np
from absl import app, flags

import jax_cxl

_FOLDER = flags.DEFINE_string("folder", None, "Where the others leave files.", required=True)


def main(_) -> None:
    jax_cxl.initialize()
    if jax.process_index() == 2:
        while len(list(pathlib.Path(_FOLDER.value).iterdir())) < 2:
            time.sleep(0.1)
        return
    try:
        jax_cxl.regroup(timeout=0.5)
    except jax_cxl.CollectiveTimeoutError as error:
        print(error, flush=True)
        assert error.rank == 2
    devices = jax_cxl.regroup(jax.devices()[:2])
    mesh = jax_cxl.make_mesh(
        (2,), ("i",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,)
    )
    total = jax.jit(
        jax.shard_map(
            lambda x: jax_cxl.psum(jax.lax.axis_index("i") * x, "i"),
            mesh=mesh, in_specs=jax.P(), out_specs=jax.P(),
        )
    )  # fmt: skip
    print(f"sum {int(total(np.float32(1)))}", flush=True)
    pathlib.Path(_FOLDER.value, str(jax.process_index())).touch()


if __name__ == "__main__":
    app.run(main)
