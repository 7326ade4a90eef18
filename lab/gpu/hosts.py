"""The stages for collectives in levels. In them a process with several GPUs stands for a host."""

import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

from lab.gpu.measurements import SMALL
from lab.gpu.process import Record, StageError, Suite

# Not int4, because XLA's collectives between GPUs do not support it.
_LEVELS_DTYPES = "float32,bfloat16,int32,float16,complex64,float8_e5m2"


def levels(short: bool = False) -> Callable[[Suite], Record]:
    """Returns a stage that checks and times collectives in levels on two GPUs.

    The stage runs three kinds of jobs. One process with both GPUs checks and times the steps inside
    a process. Two processes that both use both GPUs stand for two hosts of two GPUs. The stage
    checks their results, for whole arrays and in chunks. It does not time them, because each GPU
    has two ranks, which take turns. Two processes with one GPU each do not use levels. Their times
    show whether the code for levels makes such jobs slower.

    Args:
      short: run fewer dtypes, operations and sizes, and leave out the job of one process.
    """

    def run(suite: Suite) -> Record:
        on_gpus = suite.platform == "cuda"
        both = {"JAX_LOCAL_DEVICE_IDS": "0,1"} if on_gpus else {}
        dtypes = "float32,int32" if short else _LEVELS_DTYPES
        checked = [
            ("two processes", 2, "2,2", ()),
            ("in chunks", 2, "2,2", ("--chunk_bytes=16",)),
            ("one process", 1, "1,2", ()),
        ]
        timed = [("unchanged", 2, "flat,table"), ("inside", 1, "flat,levels")]
        operations = ["psum", "all_gather", "psum_scatter", "all_to_all"]
        sizes = ["4KiB", "1MiB", "64MiB"] if on_gpus else ["4KiB"]
        if short:
            del checked[2:], timed[1:], operations[1:-1], sizes[1:-1]
        record: Record = {}
        try:
            for name, processes, mesh, more in checked:
                record[name] = _bits(
                    suite,
                    *(f"--mesh={mesh}", f"--dtypes={dtypes}", *more),
                    processes=processes,
                    devices=2,
                    **both,
                )
            for name, processes, ways in timed:
                record[name] = _times(
                    suite,
                    *(f"--ways={ways}", f"--operations={','.join(operations)}"),
                    *(f"--sizes={','.join(sizes)}", f"--seconds={2 if on_gpus else 0.1}"),
                    processes=processes,
                    devices=2 // processes,
                )
        except StageError as error:
            raise StageError(error.status, **record, **error.record) from error
        return record

    return run


# Makes NCCL treat the two processes as two hosts that only sockets connect.
_TWO_HOSTS = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
_HOST_MEMORY = {"NCCL_P2P_DISABLE": "1"}


def two_hosts(suite: Suite) -> Record:
    """Checks and times two hosts of several GPUs: two processes, each with half of the GPUs.

    Collectives over all GPUs run in three ways, in turn: as one call through the pool, in levels
    with NCCL inside a process, and by NCCL alone. NCCL alone uses NVLink inside a process and
    sockets between processes. A second job compares one call through the pool with NCCL that uses
    host memory everywhere. Then examples/train_transformer.py trains with each `--shard`.
    """
    on_gpus = suite.platform == "cuda"
    mesh = _mesh_of_two_hosts(suite)
    sizes = "1MiB,16MiB,256MiB,1GiB" if on_gpus else "4KiB"
    flags = ["--operations=psum,all_gather,psum_scatter,all_to_all", f"--sizes={sizes}"]
    flags.append(f"--seconds={1 if on_gpus else 0.1}")
    train = ["--preset=340m", f"--batch_size={8 * suite.ranks}", "--noprefetch", "--steps=40"]
    train += [] if on_gpus else SMALL
    record: Record = {}
    try:
        for name, more in {"bits": (), "bits in chunks": ("--chunk_bytes=16",)}.items():
            record[name] = _bits(suite, mesh, "--dtypes=float32,int32", *more, processes=2)
        record["sockets between hosts"] = _times(
            suite, "--ways=flat,levels,lax", *flags, "--separate_hosts", processes=2, **_TWO_HOSTS
        )
        record["host memory"] = _times(
            suite, "--ways=flat,lax", *flags, processes=2, **_HOST_MEMORY
        )
        for shard in ("host", "all", "levels"):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "train.json"
                suite.launch(
                    *("examples/train_transformer.py", *train, f"--json={path}"),
                    *(f"--platform={suite.platform}", f"--shard={shard}"),
                    processes=2,
                )
                record[f"shard={shard}"] = json.loads(path.read_text())
    except StageError as error:
        raise StageError(error.status, **record, **error.record) from error
    return record


def levels_limits(suite: Suite) -> Record:
    """Times collectives of many sizes on two hosts, in levels and as one call.

    The times show from which size levels are faster, in a coherent pool and in a `flush` pool.
    """
    on_gpus = suite.platform == "cuda"
    mesh = _mesh_of_two_hosts(suite)
    sizes = "1MiB,2MiB,4MiB,8MiB,16MiB,32MiB,64MiB,128MiB,256MiB,1GiB" if on_gpus else "4KiB"
    operations = "psum,psum_scatter,all_gather,all_to_all,broadcast"
    flags = ["--ways=flat,levels", f"--operations={operations}", f"--sizes={sizes}"]
    flags.append(f"--seconds={1 if on_gpus else 0.1}")
    pools = {name: f"shm:?size=768MiB&coherence={name}" for name in ("coherent", "flush")}
    record: Record = {}
    try:
        for name, pool in pools.items():
            options = {"processes": 2, "JAX_CXL_POOL": pool}
            checked = (mesh, "--dtypes=float32,int32", "--chunk_bytes=16")
            record[f"bits, {name}"] = _bits(suite, *checked, **options)
            record[name] = _times(suite, *flags, **options)
    except StageError as error:
        raise StageError(error.status, **record, **error.record) from error
    return record


def _mesh_of_two_hosts(suite: Suite) -> str:
    """Returns the flag of run_levels.py for two hosts that each have half of the GPUs."""
    if suite.ranks < 4 or suite.shares_gpu:
        raise StageError("skipped", reason="needs four GPUs")
    return f"--mesh=2,{suite.ranks // 2}"


def _bits(suite: Suite, *flags: str, **options: Any) -> str:
    """Runs run_levels.py, which compares levels with NumPy; returns its last line."""
    text, _ = suite.launch(
        *("tests/programs/levels/run_levels.py", *flags),
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",
        **options,
    )
    return text.strip().splitlines()[-1]


def _times(suite: Suite, *flags: str, **options) -> list[dict]:
    """Runs benchmarks/collectives/levels.py; returns its rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "levels.json"
        suite.launch("benchmarks/collectives/levels.py", f"--json={path}", *flags, **options)
        rows: list[dict] = json.loads(path.read_text())["results"]
        return rows
