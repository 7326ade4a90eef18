"""The stages of the suite, by name. Each returns a record for the results file."""

import dataclasses
from collections.abc import Callable

from lab.gpu import checks, choices, faults, measurements, programs
from lab.gpu.process import Record, Suite


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes:
      run: function that runs the stage. It returns a record, or raises StageError.
      seconds: time limit.
      default: whether the stage runs if `--stages` is not given.
    """

    run: Callable[[Suite], Record]
    seconds: float
    default: bool = True


_SMALL, _LARGE = "4KiB,16KiB,64KiB,1MiB", "16MiB,256MiB"
_OPS_AT_1_GIB = "all_gather,psum,psum_scatter,all_to_all,broadcast"
_IN_FLUSH_POOL = {"JAX_CXL_POOL": f"shm:?size=512MiB{checks.FLUSH}"}
_IN_MEMORY_POOL = {"JAX_CXL_POOL": f"shm:?size=512MiB{checks.MEMORY}"}

ALL = {
    "build": Stage(checks.build, 240),
    "cpp_tests": Stage(checks.cpp_tests, 240),
    "sanitizers": Stage(checks.sanitizers, 240, default=False),
    "matrix": Stage(checks.matrix("matrix"), 100),
    "matrix_one_process": Stage(checks.matrix("matrix_one_process", processes=1), 60),
    "matrix_flush": Stage(checks.matrix("matrix_flush", **_IN_FLUSH_POOL), 100),
    "matrix_memory": Stage(checks.matrix("matrix_flush", **_IN_MEMORY_POOL), 100, default=False),
    "large_flush": Stage(checks.large_flush, 60),
    "matrix_full": Stage(checks.matrix("matrix_full"), 500, default=False),
    "soak": Stage(checks.soak(""), 90),
    "soak_flush": Stage(checks.soak(checks.FLUSH), 90),
    "soak_memory": Stage(checks.soak(checks.MEMORY), 90, default=False),
    "faults": Stage(faults.faults(), 300, default=False),
    "faults_short": Stage(
        faults.faults(("killed", "operation", "dtype", "count", "root"), kills=3),
        150,
        default=False,
    ),
    "overlap": Stage(measurements.overlap, 45),
    "bound": Stage(measurements.bound, 60),
    "flush": Stage(measurements.flush, 150),
    # No baseline of NCCL over sockets: it is slow for small messages, and takes time to compile.
    "bench_small": Stage(measurements.bench(_SMALL, "nccl-shm,nccl-nvlink"), 240),
    "bench_large": Stage(measurements.bench(_LARGE, "nccl-shm,nccl-socket,nccl-nvlink"), 180),
    "bench_flush": Stage(
        measurements.bench("4KiB,1MiB,16MiB,256MiB", "nccl-shm", repeats=3, **_IN_FLUSH_POOL),
        150,
        default=False,
    ),
    "bench_1gib": Stage(
        measurements.bench("1GiB", "nccl-shm,nccl-socket,nccl-nvlink", _OPS_AT_1_GIB, repeats=3),
        180,
        default=False,
    ),
    "rows": Stage(measurements.rows, 200, default=False),
    "moe": Stage(measurements.moe, 450, default=False),
    "transformer": Stage(measurements.transformer("cxl", "lax"), 300),
    "transformer_flush": Stage(
        measurements.transformer("cxl", JAX_CXL_POOL=f"shm:?size=768MiB{checks.FLUSH}"), 150
    ),
    "jit_training": Stage(measurements.jit_training, 240),
    "programs": Stage(programs.programs, 400, default=False),
    "snapshots": Stage(measurements.snapshots, 120),
    "started": Stage(choices.started, 150, default=False),
    "flush_chunks": Stage(choices.flush_chunks, 150, default=False),
    "flush_flags": Stage(choices.flush_flags, 150, default=False),
    "jit_flags": Stage(choices.jit_flags, 200, default=False),
    "snapshot_chunks": Stage(choices.snapshot_chunks, 150, default=False),
}
