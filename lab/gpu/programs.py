"""The stage of the suite that measures collectives inside of programs."""

import json
import pathlib
import subprocess
import sys
import tempfile

from lab.gpu.process import Record, StageError, Suite

_PROGRAM = "benchmarks/models/decode/decode.py"
_WAYS = "none,lax,cxl,jit,takeover"
# Behind the launcher's option --nccl, XLA's NCCL is jax_cxl's.
_DOOR = ("--nccl",)
_CONFIGURATIONS = (
    (),
    ("--width=4096",),
    ("--batch=16",),
    ("--kind=prefill", "--tokens=2048", "--steps=5"),
)
_SMALL = (("--width=256", "--layers=2", "--steps=3", "--turns=2"),)


def programs(suite: Suite) -> Record:
    """Measures tokens of a decoder and a prefill, with each way to sum."""
    on_gpus = suite.platform == "cuda"
    environment = {"NCCL_P2P_DISABLE": "1", "JAX_CXL_NCCL_HOSTS": "all"} if on_gpus else {}
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        ways = [f"--ways={_WAYS}"]
        if on_gpus:
            library = _plain_sum(suite, pathlib.Path(folder))
            ways = [f"--ways={_WAYS},nothing,kernel,plain,plain_cxl", f"--plain={library}"]
        path = pathlib.Path(folder) / "found.json"
        for flags in _CONFIGURATIONS if on_gpus else _SMALL:
            for launcher, chosen in (((), ways), (_DOOR, ["--ways=none,lax"])):
                if launcher and not on_gpus:
                    continue
                try:
                    suite.launch(
                        *launcher, _PROGRAM, f"--json={path}", *chosen, *flags, **environment
                    )
                except StageError as error:
                    raise StageError(error.status, results=rows, **error.record) from error
                found = json.loads(path.read_text())
                of_ways = found.pop("ways")
                if launcher:
                    of_ways = {"none": of_ways["none"], "door": of_ways["lax"]}
                rows += [{"way": way, **figures, **found} for way, figures in of_ways.items()]
    return {"results": rows}


def _plain_sum(suite: Suite, folder: pathlib.Path) -> pathlib.Path:
    """Compiles plain_sum.cu into the folder."""
    include = subprocess.run(
        [sys.executable, "-c", "import jax.ffi; print(jax.ffi.include_dir())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    library = folder / "libplain_sum.so"
    suite.run(
        *("nvcc", "-O2", "-std=c++17", "-arch=native", "-Xcompiler", "-fPIC", "-shared"),
        *("-I", include, str(pathlib.Path(_PROGRAM).with_name("plain_sum.cu"))),
        *("-o", str(library), "-ldl"),
    )
    return library
