"""Checks and times JAX's collectives between two processes, each with one GPU.

    python -m lab.nccl.jax_check                            NCCL itself
    JAX_CXL_NCCL_HOSTS=all LD_PRELOAD=.../_nccl/libnccl.so.2 \\
        python -m lab.nccl.jax_check                        through the pool

Needs JAX with CUDA, but not jax_cxl's Python package. Prints a line of JSON for each result, and
ends with 1 if a value was wrong.
"""

import json
import os
import socket
import subprocess
import sys
import time


def _rank(rank: int, port: int) -> int:
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    jax.distributed.initialize(f"localhost:{port}", 2, rank)
    mesh = jax.make_mesh((2,), ("i",))
    wrong = 0
    operations = {
        "psum": lambda x: jax.lax.psum(x, "i"),
        "pmax": lambda x: jax.lax.pmax(x, "i"),
        "all_gather": lambda x: jax.lax.all_gather(x, "i", tiled=True),
        "psum_scatter": lambda x: jax.lax.psum_scatter(x, "i", tiled=True),
        "all_to_all": lambda x: jax.lax.all_to_all(x, "i", 0, 0, tiled=True),
        "ppermute": lambda x: jax.lax.ppermute(x, "i", [(0, 1), (1, 0)]),
    }

    def expected(name: str, x: np.ndarray) -> np.ndarray:
        mine, half = x[rank], len(x[0]) // 2
        part = slice(rank * half, (rank + 1) * half)
        return {
            "psum": lambda: x.sum(0),
            "pmax": lambda: x.max(0),
            "all_gather": lambda: x.reshape(-1),
            "psum_scatter": lambda: x.sum(0)[part],
            "all_to_all": lambda: np.concatenate([x[0][part], x[1][part]]),
            "ppermute": lambda: x[1 - rank],
        }[name]().astype(mine.dtype)

    for name, operation in operations.items():
        call = jax.jit(jax.shard_map(operation, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
        for count in (2, 1024, 1 << 18, 4 << 20, 64 << 20):
            rows = (np.arange(2 * count) % 7 + 1).reshape(2, count).astype(np.float32)
            rows[1] += 3
            x = jax.make_array_from_process_local_data(
                jax.NamedSharding(mesh, P("i")), rows[rank], (2 * count,)
            )
            got = np.asarray(call(x).addressable_shards[0].data)
            wrong += int((got != expected(name, rows)).sum())
            times = []
            for _ in range(7):
                jax.block_until_ready(x)
                begin = time.perf_counter()
                for _ in range(10):
                    y = call(x)
                jax.block_until_ready(y)
                times.append((time.perf_counter() - begin) / 10)
            if rank == 0:
                us = round(sorted(times)[3] * 1e6, 1)
                print(json.dumps({"call": name, "bytes": 4 * count, "us": us}), flush=True)
    print(json.dumps({"rank": rank, "wrong": wrong}), flush=True)
    return int(wrong > 0)


def main() -> int:
    if len(sys.argv) == 3:
        return _rank(int(sys.argv[1]), int(sys.argv[2]))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(port)]) for rank in range(2)
    ]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
