"""Times the steps of a trainer that publishes its parameters, with readers and without.

    python benchmarks/store/trainer_step.py --readers=2 --json FILE

The trainer has a core of its own, and the readers share the others, so they take no processor time
from the trainer. The times show only what readers cost through the store and the memory. These
three turns repeat:

    alone      the trainer publishes nothing
    nobody     it publishes every few steps, and nobody reads
    readers    it publishes, and each reader reads every version that it can get

`ms` is the time of a turn, including its calls of `publish`, divided by the number of steps. Ratios
compare neighboring turns.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/helpers"))
import shared_folder

_READERS = flags.DEFINE_integer("readers", 2, "readers")
_TURNS = flags.DEFINE_integer("turns", 15, "turns of each kind")
_STEPS = flags.DEFINE_integer("steps", 30, "steps of a turn")
_EVERY = flags.DEFINE_integer("every", 5, "steps from version to version")
_WIDTH = flags.DEFINE_integer("width", 1024, "width of the four layers")
_BATCH = flags.DEFINE_integer("batch", 512, "rows of a batch")
_JSON = flags.DEFINE_string("json", None, "file for the results")
_READ = flags.DEFINE_string("read", None, "set by this program")

_NAME = "weights"
_KINDS = ("alone", "nobody", "readers")
_IDLE_SECONDS = 0.02


def _read(folder: pathlib.Path) -> None:
    import jax_cxl

    store = jax_cxl.Store(_where(folder))
    version, count = None, 0
    while True:
        if not (folder / "open").exists():
            time.sleep(_IDLE_SECONDS)
            continue
        try:
            last = -1 if version is None else version.version
            version = store.read(_NAME, newer_than=last, timeout=_IDLE_SECONDS, into=version)
        except jax_cxl.StoreTimeoutError:
            continue
        count += 1
        (folder / f"reads.{os.getpid()}").write_text(str(count))


def _where(folder: pathlib.Path) -> str:
    return f"file:{folder}/store?size={(16 * _WIDTH.value**2 * 4 >> 20) + 64}MiB"


def _train(folder: pathlib.Path) -> dict[str, list[float]]:
    import jax
    import jax.numpy as jnp

    import jax_cxl

    keys = jax.random.split(jax.random.key(0), 5)
    parameters = [jax.random.normal(key, (_WIDTH.value,) * 2) * 0.03 for key in keys[:4]]
    x = jax.random.normal(keys[4], (_BATCH.value, _WIDTH.value))

    def loss(parameters: Any) -> jax.Array:
        y = x
        for layer in parameters:
            y = jnp.tanh(y @ layer)
        return jnp.mean((y - x) ** 2)

    @jax.jit
    def step(parameters: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, jax.grad(loss)(parameters))

    store = jax_cxl.Store(_where(folder))
    times: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for turn in range(-1, _TURNS.value):
        for kind in _KINDS:
            if kind == "readers":
                (folder / "open").touch()
                time.sleep(3 * _IDLE_SECONDS)
            begin = time.perf_counter()
            for number in range(_STEPS.value):
                parameters = jax.block_until_ready(step(parameters))
                if kind != "alone" and number % _EVERY.value == 0:
                    store.publish(_NAME, parameters)
            if turn >= 0:  # The first turn compiles, and makes pages.
                times[kind].append(1e3 * (time.perf_counter() - begin) / _STEPS.value)
            if kind != "alone":
                store.flush(_NAME)
            (folder / "open").unlink(missing_ok=True)
            time.sleep(3 * _IDLE_SECONDS)
    return times


def main(_: list[str]) -> None:
    if _READ.value:
        _read(pathlib.Path(_READ.value))
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise app.UsageError("needs two cores")
    os.environ["JAX_PLATFORMS"] = "cpu"
    with shared_folder.folder("jax_cxl_trainer_step.") as name:
        folder = pathlib.Path(name)
        os.sched_setaffinity(0, cores[1:])
        command = [sys.executable, __file__, f"--read={folder}", f"--width={_WIDTH.value}"]
        readers = [subprocess.Popen(command) for _ in range(_READERS.value)]
        os.sched_setaffinity(0, cores[:1])
        try:
            times = _train(folder)
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
        reads = [int(file.read_text()) for file in folder.glob("reads.*")]
    versions = (2 * _TURNS.value + 2) * len(range(0, _STEPS.value, _EVERY.value))
    row: dict[str, Any] = {"emulated": True, "versions": versions, "reads": reads}
    row |= {"parameter_mib": 4 * _WIDTH.value**2 * 4 / 2**20}
    for kind, found in times.items():
        row[f"{kind}_ms"] = round(statistics.median(found), 2)
    for kind, peer in (("nobody", "alone"), ("readers", "nobody")):
        ratios = [a / b for a, b in zip(times[kind], times[peer], strict=True)]
        row[f"{kind}/{peer}"] = [round(f(ratios), 3) for f in (statistics.median, min, max)]
    print(json.dumps(row), flush=True)
    if _JSON.value:
        pathlib.Path(_JSON.value).write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
