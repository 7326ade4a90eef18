"""Starts several processes that need the same model: from a store, and from a safetensors file.

    python benchmarks/store/cold_start.py --gib=4 --processes=4 --json FILE

All processes start to read at once. `seconds` is the time until the last process has its arrays of
JAX on a CPU device and has read every byte of them once. `pss` is the memory of all processes
together, including the pages of the store or of the page cache that they use. Each page counts
once, even if several processes share it. The file is in the page cache before the processes start.
The store takes three times the memory of the model, because it keeps several versions. The machine
also needs memory for one model per process. To save memory, the store and the file do not exist at
the same time.

    view          arrays over the memory of the store
    read          arrays of each process's own, from the store
    safetensors   arrays of each process's own, from the file
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from absl import app, flags

_GIB = flags.DEFINE_float("gib", 4, "GiB of the model")
_ARRAYS = flags.DEFINE_integer("arrays", 32, "arrays of the model")
_PROCESSES = flags.DEFINE_integer("processes", 4, "processes")
_TURNS = flags.DEFINE_integer("turns", 3, "how often each way is measured")
_FILES = flags.DEFINE_string("files", tempfile.gettempdir(), "folder for the file")
_JSON = flags.DEFINE_string("json", None, "file for the results")
_WAYS = flags.DEFINE_list("ways", ["view", "read", "safetensors"], "ways to measure")
_WAY = flags.DEFINE_enum("way", None, ["view", "read", "safetensors"], "set by this program")
_FOLDER = flags.DEFINE_string("folder", None, "set by this program")
_RANK = flags.DEFINE_integer("rank", 0, "set by this program")

_NAME = "cold_start"


def _where() -> str:
    return f"shm:{_NAME}?size={int(_GIB.value * 3.2 * 1024) + 64}MiB"


def _file() -> pathlib.Path:
    return pathlib.Path(_FILES.value, f"{_NAME}.safetensors")


def _meet(what: str) -> None:
    folder = pathlib.Path(_FOLDER.value)
    (folder / f"{what}.{_RANK.value}").touch()
    while len(list(folder.glob(f"{what}.*"))) < _PROCESSES.value:
        time.sleep(0.001)


def _pss() -> int:
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/self/smaps_rollup has no Pss")


def _process() -> None:
    import jax

    import jax_cxl

    cpu = jax.devices("cpu")[0]
    size = int(_GIB.value * 2**30) // 4 // _ARRAYS.value
    where = jax.sharding.SingleDeviceSharding(cpu)
    like = {
        f"w{n:03}": jax.ShapeDtypeStruct((size,), np.float32, sharding=where)
        for n in range(_ARRAYS.value)
    }
    before = _pss()
    _meet("begin")
    begin = time.perf_counter()
    held: Any = None
    if _WAY.value == "safetensors":
        from safetensors import safe_open

        with safe_open(_file(), "np") as file:
            tree = {name: jax.device_put(file.get_tensor(name), cpu) for name in like}
    else:
        store = jax_cxl.Store(_where())
        if _WAY.value == "view":
            held = store.view("model", like)
            tree = held.tree
        else:
            _, tree = store.read("model", like)
    total = sum(int(np.asarray(x).view(np.uint32).max()) for x in tree.values())
    seconds = time.perf_counter() - begin
    _meet("end")
    pss = _pss() - before
    _meet("pss")
    print(json.dumps({"seconds": seconds, "pss": pss, "total": total}), flush=True)


def _run(way: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(_PROCESSES.value):
            command = [sys.executable, __file__, f"--way={way}", f"--folder={folder}"]
            command += [f"--rank={rank}", *sys.argv[1:]]
            environment = os.environ | {"JAX_PLATFORMS": "cpu"}
            running.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            )
        texts = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        sys.exit("a process failed")
    found = [json.loads(text.strip().splitlines()[-1]) for text in texts]
    assert len({x["total"] for x in found}) == 1
    return {
        "seconds": max(x["seconds"] for x in found),
        "pss": sum(x["pss"] for x in found),
        "total": found[0]["total"],
    }


def _prepare(way: str) -> pathlib.Path:
    """Writes the model to a file for the way `safetensors`, else to a store. Returns the path."""
    import jax_cxl

    size = int(_GIB.value * 2**30) // 4 // _ARRAYS.value
    rng = np.random.default_rng(0)
    model = {f"w{n:03}": rng.random(size, np.float32) for n in range(_ARRAYS.value)}
    if way == "safetensors":
        from safetensors import numpy as safetensors

        safetensors.save_file(model, _file())
        return _file()
    with jax_cxl.Store(_where()) as store:
        store.publish("model", model)
        store.flush("model")
    return pathlib.Path(f"/dev/shm/jax_cxl_store.{_NAME}")


def main(_: list[str]) -> None:
    if _WAY.value:
        _process()
        return
    rows, totals = [], set()
    for way in _WAYS.value:
        kept = _prepare(way)
        try:
            runs = [_run(way) for _ in range(_TURNS.value)]
        finally:
            kept.unlink()
        totals |= {run["total"] for run in runs}
        seconds = [round(run["seconds"], 3) for run in runs]
        pss = statistics.median(run["pss"] for run in runs)
        row = {"way": way, "seconds": seconds, "median": statistics.median(seconds)}
        rows.append(row | {"pss_gib": round(pss / 2**30, 2)})
        print(json.dumps(rows[-1]), flush=True)
    assert len(totals) == 1
    if _JSON.value:
        pathlib.Path(_JSON.value).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    app.run(main)
