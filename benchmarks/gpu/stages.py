"""The stages of the suite. Each runs something, and returns a record for the results file."""

import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from gpu.process import StageError, Suite

Record = dict[str, Any]

# Programs of several operations take less time to compile.
_MATRIX_SELECTION = {
    "matrix": [
        "--transformations=value,scan",
        "--dtypes=bool,int8,int16,int32,int64,uint8,uint16,uint32,uint64,float16,bfloat16,float32,"
        "float64,complex64,complex128,float8_e4m3fn,float8_e5m2",
        "--operations_per_program=6",
    ],
    "matrix_one_process": [
        "--transformations=value,grad",
        "--dtypes=float32,bfloat16,int8",
        "--operations_per_program=12",
    ],
    "matrix_flush": [
        "--transformations=value",
        "--dtypes=float32,bfloat16,int8,complex64",
        "--operations_per_program=6",
    ],
    "matrix_full": ["--part=0", "--operations_per_program=2"],
}
_OPS = "all_gather,psum,psum_scatter,all_to_all,broadcast,reduce,gather,scatter"
_OPS_AT_1_GIB = "all_gather,psum,psum_scatter,all_to_all,broadcast"
_CPP_TEST_SECONDS = 45


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


def build(suite: Suite) -> Record:
    """Builds the programs of the suite, or copies finished modules; imports the CUDA module."""
    modules = list(suite.build.glob("_c*.so"))
    elsewhere = bool(modules) and not (suite.build / "CMakeCache.txt").exists()
    if elsewhere:
        for module in modules:
            shutil.copy(module, suite.root / "jax_cxl")
    else:
        suite.run(
            *("cmake", "-S", ".", "-B", str(suite.build), "-G", "Ninja"),
            *(f"-DPython_EXECUTABLE={sys.executable}", "-DJAX_CXL_TESTS=ON", "-DJAX_CXL_CUDA=ON"),
            "-DCMAKE_CUDA_ARCHITECTURES=native",
        )
        suite.run("cmake", "--build", str(suite.build), "--target", "gpu_suite")
    devices, _ = suite.run(
        *(sys.executable, "-c", "import jax, jax_cxl._cuda; print(jax.devices())"),
        JAX_PLATFORMS="cuda",
    )
    return {"devices": devices.strip(), "built_elsewhere": elsewhere}


def cpp_tests(suite: Suite) -> Record:
    """Runs the C++ tests that need GPUs, each by itself, because a test may hang."""
    record: Record = {"passed": {}, "failed": {}}
    end = suite.deadline
    for program in sorted(suite.build.glob("cuda_*_test")):
        text, _ = suite.run(str(program), "--gtest_list_tests")
        group = ""
        for line in text.splitlines():
            if not line.startswith(" "):
                group = line
                continue
            name = group + line.split()[0]
            begin = time.monotonic()
            suite.deadline = min(end, begin + _CPP_TEST_SECONDS)
            try:
                suite.run(str(program), f"--gtest_filter={name}")
                record["passed"][name] = round(time.monotonic() - begin, 1)
            except StageError as error:
                record["failed"][name] = {"status": error.status, **error.record}
    if record["failed"] or not record["passed"]:
        raise StageError("failed", **record)
    return record


def _matrix(name: str, processes: int = 0, **environment: str) -> Callable[[Suite], Record]:
    def run(suite: Suite) -> Record:
        with tempfile.TemporaryDirectory() as folder:
            program = ["tests/programs/matrix/run_matrix.py", f"--output={folder}"]
            program += _MATRIX_SELECTION[name]
            text, complete = suite.launch(*program, processes=processes, check=False, **environment)
            if not list(pathlib.Path(folder).glob("*.json")):
                raise StageError("failed", stdout=text[-3000:])
            check = [sys.executable, "tests/programs/matrix/check_matrix.py", f"--records={folder}"]
            suite.deadline += 60
            found, _ = suite.run(*check, JAX_PLATFORMS="cpu", MATRIX_RANKS=str(suite.ranks))
        record = {"complete": complete, **json.loads(found)}
        if record["unexpected"] or not complete:
            raise StageError("failed" if record["unexpected"] else "out of time", **record)
        return record

    return run


def large_flush(suite: Suite) -> Record:
    """Checks calls by the copy engines in a pool that nobody keeps coherent."""
    size = "--mib=4" if suite.platform == "cpu" else "--mib=256"
    text, _ = suite.launch(
        *("tests/programs/gpu/large_calls.py", size),
        JAX_CXL_POOL="shm:?size=768MiB&coherence=flush",
    )
    return {"wrong": json.loads(text.strip().splitlines()[-1])}


def overlap(suite: Suite) -> Record:
    """Measures start and done beside matrix products."""
    small = ["--mib=4", "--width=256"] if suite.platform == "cpu" else []
    text, _ = suite.launch("tests/programs/gpu/cuda_overlap.py", *small)
    return json.loads(text.strip().splitlines()[-1])


def bound(suite: Suite) -> Record:
    """Runs the C++ benchmark: the engine alone, and copies without synchronization."""
    sizes = "1048576,16777216,67108864,268435456"
    text, complete = suite.run(
        str(suite.build / "cuda_device_benchmark"), f"--sizes=4096,65536,{sizes}", check=False
    )
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not complete:
        raise StageError("failed", results=rows)
    return {"results": rows}


def flush(suite: Suite) -> Record:
    """Runs the C++ benchmark on pools of all kinds of coherence, in turns."""
    # Copies of ranks that share a GPU may wait for each other in one queue of the GPU.
    by_kernels = ["--copy_engine=1000000000000"] if suite.shares_gpu else []
    text, complete = suite.run(
        *(str(suite.build / "cuda_device_benchmark"), f"--ranks={suite.ranks}", "--bound=0"),
        *("--sizes=4096,1048576,16777216,268435456", "--coherence=coherent,flush,memory"),
        *("--repeats=5", *by_kernels),
        check=False,
    )
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    coherent = {
        (row["op"], row["bytes"]): row["time_us"]["median"]
        for row in rows
        if row["coherence"] == "coherent"
    }
    for row in rows:
        row["times_coherent"] = round(
            row["time_us"]["median"] / coherent[row["op"], row["bytes"]], 2
        )
    if not complete:
        raise StageError("failed", results=rows)
    return {"results": rows}


def _bench(
    sizes: str, baselines: str, ops: str = _OPS, repeats: int = 5
) -> Callable[[Suite], Record]:
    def run(suite: Suite) -> Record:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bench.json"
            text, complete = suite.run(
                *(sys.executable, "-m", "jax_cxl", "bench", "--platform", "cuda"),
                *("--ranks", str(suite.ranks), "--ops", ops, "--sizes", sizes),
                *("--baseline", baselines, "--repeats", str(repeats), "--json", str(path)),
                check=False,
            )
            found = json.loads(path.read_text()) if path.exists() else {"results": []}
        if not complete:
            raise StageError("incomplete", stdout=text[-3000:], **found)
        return {"command": found["command"], "results": found["results"]}

    return run


def transformer(suite: Suite) -> Record:
    """Trains with both kinds of collectives, NCCL restricted to memory of the host."""
    on_gpus = suite.platform == "cuda"
    # Sequences of a step. With more, computation hides all communication; with fewer, none.
    sequences = {2: 12}.get(suite.ranks, 8 * suite.ranks)
    flags = ["--preset=340m", f"--batch_size={sequences}"]
    steps = 200
    if not on_gpus:
        steps = 30
        flags += ["--width=64", "--heads=4", "--sequence_length=32", "--layers=2"]
    flags += [f"--steps={steps}", f"--evaluate_every={steps}", "--measure"]
    # Both runs choose their matrix kernels from the same measurements.
    measurements = suite.build / "autotune"
    measurements.mkdir(parents=True, exist_ok=True)
    tuned = f"--xla_gpu_per_fusion_autotune_cache_dir={measurements}"
    # XLA's own way to overlap collectives with computation.
    hides = "--xla_gpu_enable_latency_hiding_scheduler=true"
    environments = {
        "cxl": {"XLA_FLAGS": tuned},
        "lax": {"XLA_FLAGS": f"{tuned} {hides}", "NCCL_P2P_DISABLE": "1"},
    }
    # If the first run hangs, the second one still has time.
    begin, end = time.monotonic(), suite.deadline
    deadlines = {"cxl": begin + 0.6 * (end - begin), "lax": end}
    found: Record = {}
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for name, environment in environments.items():
            path = pathlib.Path(folder) / f"{name}.json"
            suite.deadline = deadlines[name]
            try:
                suite.launch(
                    *("examples/train_transformer.py", *flags, f"--json={path}"),
                    *(f"--platform={suite.platform}", f"--collectives={name}"),
                    **environment if on_gpus else {},
                )
            except StageError as error:
                found[name] = {"status": error.status, **error.record}
                continue
            found[name] = json.loads(path.read_text())
            found[name]["environment"] = {
                # The path of the folder means nothing on other machines.
                variable: value.replace(str(suite.build), "FOLDER")
                for variable, value in environment.items()
            }
            losses.append([loss for _, loss in found[name]["train_loss"]])
    if len(losses) < len(environments):
        raise StageError("failed", **found)
    differences = [abs(a - b) / abs(b) for a, b in zip(*losses, strict=True)]
    return found | {"largest_relative_loss_difference": max(differences)}


ALL = {
    "build": Stage(build, 240),
    "cpp_tests": Stage(cpp_tests, 120),
    "matrix": Stage(_matrix("matrix"), 100),
    "matrix_one_process": Stage(_matrix("matrix_one_process", processes=1), 60),
    "matrix_flush": Stage(
        _matrix("matrix_flush", JAX_CXL_POOL="shm:?size=512MiB&coherence=flush"), 100
    ),
    "large_flush": Stage(large_flush, 60),
    "matrix_full": Stage(_matrix("matrix_full"), 500, default=False),
    "overlap": Stage(overlap, 45),
    "bound": Stage(bound, 60),
    "flush": Stage(flush, 150),
    # Without sockets, which are slow for small messages: compiling each baseline takes time.
    "bench_small": Stage(_bench("4KiB,16KiB,64KiB,1MiB", "nccl-shm,nccl-nvlink"), 240),
    "bench_large": Stage(_bench("16MiB,256MiB", "nccl-shm,nccl-socket,nccl-nvlink"), 180),
    "bench_1gib": Stage(
        _bench("1GiB", "nccl-shm,nccl-socket,nccl-nvlink", _OPS_AT_1_GIB, repeats=3),
        180,
        default=False,
    ),
    "transformer": Stage(transformer, 300),
}
