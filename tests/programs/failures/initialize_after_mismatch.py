"""Ranks disagree, shut down, initialize again and run identical programs."""

import jax
import numpy as np

import jax_cxl


def main() -> None:
    jax.distributed.initialize()
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh(
        (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
    )

    def program(collective):
        return jax.jit(
            jax.shard_map(
                lambda x: collective(x, "i"), mesh=mesh, in_specs=jax.P(), out_specs=jax.P(),
                check_vma=False,
            )
        )  # fmt: skip

    total, most = program(jax_cxl.psum), program(jax_cxl.pmax)
    total(np.float32(1)).block_until_ready()
    for turn in range(2):
        # From here on, the ranks have launched each program different numbers of times.
        wrong = [total, most][(jax.process_index() + turn) % 2]
        try:
            wrong(np.float32(1)).block_until_ready()
        except jax_cxl.MismatchError:
            print("mismatch", flush=True)
        jax_cxl.shutdown()
        jax_cxl.initialize()
        for x in range(3):
            print(f"sum {total(np.float32(x))}, max {most(np.float32(x))}", flush=True)


if __name__ == "__main__":
    main()
