"""A process of a job of two hosts: all collectives against NumPy, then psum until an error.

    job.py PROCESS COORDINATOR POOL...

The job uses one POOL after another. In each it runs the collectives with the sizes in the variable
SIZES. In the last pool psum then runs for SECONDS_TO_RUN seconds.
"""

import os
import sys
import time

import jax
import numpy as np

import jax_cxl

_SIZES = tuple(map(int, os.environ.get("SIZES", "4,4096").split(",")))


def collectives(mesh, process: int) -> int:
    """Runs the collectives; returns how many differ from NumPy."""
    ranks, wrong = mesh.size, 0
    sharding = jax.NamedSharding(mesh, jax.P("i"))
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    for size in _SIZES:
        # Row r of x is the operand of rank r: `ranks` blocks of `size` elements each.
        x = np.random.default_rng(size).integers(-99, 99, (ranks, ranks * size)).astype(np.float32)
        sums, blocks = x.sum(0), x.reshape(ranks, ranks, size)
        every = np.stack([sums] * ranks)
        cases = {
            "psum": (lambda v: jax_cxl.psum(v, "i"), every),
            "pmax": (lambda v: jax_cxl.pmax(v, "i"), np.stack([x.max(0)] * ranks)),
            "pmin": (lambda v: jax_cxl.pmin(v, "i"), np.stack([x.min(0)] * ranks)),
            "pmean": (lambda v: jax_cxl.pmean(v, "i"), every / ranks),
            "all_gather": (lambda v: jax_cxl.all_gather(v, "i"), np.stack([x] * ranks)),
            "psum_scatter": (
                lambda v: jax_cxl.psum_scatter(v, "i", tiled=True),
                sums.reshape(ranks, size),
            ),
            "all_to_all": (
                lambda v: jax_cxl.all_to_all(v.reshape(ranks, size), "i", 0, 0),  # noqa: B023
                blocks.transpose(1, 0, 2),
            ),
            "ppermute": (lambda v: jax_cxl.ppermute(v, "i", ring), np.roll(x, 1, 0)),
            "broadcast": (lambda v: jax_cxl.broadcast(v, "i", root=1), np.stack([x[1]] * ranks)),
            "pscan": (lambda v: jax_cxl.pscan(v, "i"), np.cumsum(x, 0)),
        }
        names = [*cases]

        # One program, because compiling takes most of the time.
        def program(v):
            return [cases[name][0](v[0])[None] for name in names]  # noqa: B023

        specs = [jax.P("i")] * len(names)
        run = jax.jit(
            jax.shard_map(program, mesh=mesh, in_specs=jax.P("i"), out_specs=specs, check_vma=False)
        )
        given = jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])  # noqa: B023
        for _ in range(3):
            for name, result in zip(names, run(given), strict=True):
                mine = np.asarray(result.addressable_shards[0].data)[0]
                if not np.array_equal(mine, cases[name][1][process]):
                    wrong += 1
                    print(f"WRONG {name} of {size}", flush=True)
        print(f"checked {' '.join(names)} of {size}", flush=True)
    return wrong


def main(process: int, coordinator: str, *pools: str) -> None:
    jax.distributed.initialize(coordinator, 2, process)
    for number, pool in enumerate(pools):
        if number > 0:
            jax_cxl.shutdown()
        jax_cxl.initialize(pool)
        mesh = jax_cxl.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        wrong = collectives(mesh, process)
        print(f"RESULTS {pool} {'right' if not wrong else 'WRONG'}", flush=True)
    total = jax.jit(
        jax.shard_map(
            lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P()
        )
    )
    sharding = jax.NamedSharding(mesh, jax.P("i"))
    x = jax.make_array_from_callback((2,), sharding, lambda i: np.arange(2, dtype=np.float32)[i])
    calls, last, longest = 0, time.monotonic(), 0.0
    end = last + float(os.environ.get("SECONDS_TO_RUN", "0"))
    try:
        while True:
            done = total(x)
            assert float(np.asarray(done.addressable_shards[0].data)[0]) == 1
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            calls += 1
            if calls in (3, 100):
                print(f"LOOPING {calls}", flush=True)
            # Only process 0 stops by the clock. The next call of the other process then fails, and
            # that ends its loop.
            if now > end and process == 0:
                break
    except jax_cxl.PoolError as error:
        print(f"POOL ERROR after {time.monotonic() - last:.1f} s: {error}", flush=True)
        sys.exit(4)
    except jax_cxl.PeerLostError as error:
        waited = time.monotonic() - last
        print(f"LOST after {waited:.1f} s: rank {error.rank} on {error.host}: {error}", flush=True)
        sys.exit(3)
    except jax_cxl.MismatchError as error:
        print(f"OVER after {calls} calls, longest {longest:.1f} s: {error}", flush=True)
        sys.exit(0)
    print(f"OVER after {calls} calls, longest {longest:.1f} s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
