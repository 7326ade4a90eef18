"""The stages of the suite that check results."""

import json
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable

from lab.gpu.process import Record, StageError, Suite

FLUSH = "&coherence=flush"
MEMORY = f"{FLUSH}&gpu_writes=memory"

_DTYPES = (
    "bool,int8,int16,int32,int64,uint8,uint16,uint32,uint64,float16,bfloat16,float32,float64,"
    "complex64,complex128,float8_e4m3fn,float8_e5m2"
)
# --operations_per_program: one program of several operations compiles faster than one program for
# each operation.
_MATRIX_SELECTION = {
    "matrix": [
        "--transformations=value,scan",
        f"--dtypes={_DTYPES}",
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
    "matrix_full": ["--sixths=0,3", "--operations_per_program=2"],
}
_CPP_TEST_SECONDS = 45


def build(suite: Suite) -> Record:
    """Builds what the suite runs, then imports the CUDA module.

    If the folder `suite.build` has modules but no CMake build, they were built on another machine.
    Then this function only copies them into the package.
    """
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
    record: Record = {"passed": {}, "failed": {}, "not run": []}
    end = suite.deadline
    for program in sorted(suite.build.glob("cuda_*_test")):
        suite.deadline = max(end, time.monotonic() + _CPP_TEST_SECONDS)
        text, _ = suite.run(str(program), "--gtest_list_tests")
        group = ""
        for line in text.splitlines():
            if not line.startswith(" "):
                group = line
                continue
            name = group + line.split()[0]
            begin = time.monotonic()
            if begin >= end:
                record["not run"].append(name)
                continue
            suite.deadline = min(end, begin + _CPP_TEST_SECONDS)
            try:
                suite.run(str(program), f"--gtest_filter={name}")
                record["passed"][name] = round(time.monotonic() - begin, 1)
            except StageError as error:
                if error.status == "out of time" and suite.deadline == end:
                    record["not run"].append(name)
                else:
                    record["failed"][name] = {"status": error.status, **error.record}
    if record["not run"] and not record["failed"]:
        raise StageError("out of time", **record)
    if record["failed"] or not record["passed"]:
        raise StageError("failed", **record)
    return record


# Two sizes of rows: 24 bytes, with which neighboring rows share a vector of 16 bytes, and 48 bytes,
# which are whole vectors.
_SANITIZED = "Words/DeviceRowsTest.*/1:Words/DeviceRowsTest.*/3"
_SANITIZERS = ("memcheck", "racecheck")


def sanitizers(suite: Suite) -> Record:
    """Tests calls that move rows, under compute-sanitizer.

    The sanitizer makes kernels many times slower, so only two sizes of rows are tested.
    """
    places = (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer")
    tool = next((place for place in places if place and pathlib.Path(place).exists()), None)
    if tool is None:
        raise StageError("skipped", reason="compute-sanitizer is not installed")
    record: Record = {}
    end = suite.deadline
    for number, name in enumerate(_SANITIZERS):
        begin = time.monotonic()
        # Divide the time, so that the second tool still runs if the first one hangs.
        suite.deadline = begin + (end - begin) / (len(_SANITIZERS) - number)
        text, complete = suite.run(
            *(tool, f"--tool={name}", "--error-exitcode=9"),
            *(str(suite.build / "cuda_device_rows_test"), f"--gtest_filter={_SANITIZED}"),
            check=False,
        )
        found = [line.strip("= ") for line in text.splitlines() if "SUMMARY" in line]
        passed = sum(line.startswith("[       OK ]") for line in text.splitlines())
        seconds = round(time.monotonic() - begin, 1)
        record[name] = {
            "complete": complete,
            "passed": passed,
            "summary": found,
            "seconds": seconds,
        }
    if not all(found["complete"] and found["passed"] for found in record.values()):
        raise StageError("failed", **record)
    return record


def matrix(name: str, processes: int = 0, **environment: str) -> Callable[[Suite], Record]:
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
    """Checks large calls, which use the copy engines, in a pool without coherence."""
    size = "--mib=4" if suite.platform == "cpu" else "--mib=256"
    text, _ = suite.launch(
        *("tests/programs/gpu/large_calls.py", size),
        JAX_CXL_POOL="shm:?size=768MiB&coherence=flush",
    )
    return {"wrong": json.loads(text.strip().splitlines()[-1])}


def soak(pool: str) -> Callable[[Suite], Record]:
    """Returns a stage that runs random collectives and their gradients.

    Args:
      pool: settings of the pool, which are appended to its URI.
    """

    def run(suite: Suite) -> Record:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "soak.json"
            suite.launch(
                *("tests/programs/soak.py", "--seconds=30", f"--dtypes={_DTYPES}", "--size=12"),
                f"--output={path}",
                JAX_CXL_POOL=f"shm:?size=768MiB{pool}",
            )
            return json.loads(path.read_text())

    return run
