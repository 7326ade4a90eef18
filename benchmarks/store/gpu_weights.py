"""Measures how fast reader jobs on one GPU get the weights of a trainer on another GPU.

    python benchmarks/store/gpu_weights.py --gib=16 --json FILE

The trainer publishes bf16 arrays. All readers read them into their GPU at the same time, and
compare every bit with what was published. With --trainer_gpus=2 each array is sharded over two GPUs
of the trainer. "bound" is the time of the copy engines for the same bytes, without checksums and
records. It is measured in the same run, with the same number of processes. For comparison,
Orbax saves to /dev/shm and restores from there, in the same processes. If the trainer has one GPU,
the readers also pull the arrays by `jax.experimental.transfer`.

On a machine without GPUs the processes use CPU devices, so that one can try the script out.
"""

import functools
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from absl import app, flags

_GIB = flags.DEFINE_float("gib", 16, "GiB of weights")
_ARRAYS = flags.DEFINE_integer("arrays", 64, "arrays of the weights")
_READERS = flags.DEFINE_integer("readers", 2, "reader jobs")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "versions")
_ORBAX = flags.DEFINE_bool("orbax", True, "whether to measure Orbax")
_TRAINER_GPUS = flags.DEFINE_integer("trainer_gpus", 1, "GPUs of the trainer")
_SAME_GPU = flags.DEFINE_bool("same_gpu", True, "all readers use one GPU, not each its own")
_TRANSFER = flags.DEFINE_bool("transfer", True, "whether to measure jax.experimental.transfer")
_JSON = flags.DEFINE_string("json", None, "file for the results")
_ROLE = flags.DEFINE_string("role", None, "set by this program")
_FOLDER = flags.DEFINE_string("folder", None, "set by this program")

_ORBAX_FOLDER = "/dev/shm/jax_cxl_gpu_weights_orbax"


class _Meeting:
    """A barrier of all processes. Each makes a file, and waits for the files of the others."""

    def __init__(self) -> None:
        self._folder = pathlib.Path(_FOLDER.value)
        self._count = 0

    def __call__(self) -> None:
        self._count += 1
        (self._folder / f"{self._count}.{_ROLE.value}").touch()
        while len(list(self._folder.glob(f"{self._count}.*"))) < 1 + _READERS.value:
            time.sleep(0.001)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def _second_copy(tree: Any, place: Any) -> tuple[float, Any]:
    """Copies a tree to `place` twice; returns the seconds of the second copy, and its arrays."""
    import jax

    jax.block_until_ready(jax.device_put(tree, place))
    return _timed(lambda: jax.block_until_ready(jax.device_put(tree, place)))


def _process() -> None:
    """Runs one process: the trainer, or a reader."""
    import jax
    import jax.numpy as jnp

    import jax_cxl

    meet = _Meeting()
    size = int(_GIB.value * 2**30) // 2 // _ARRAYS.value // 8 * 8
    on_gpu = jax.default_backend() != "cpu"

    devices = jax.devices()
    place = jax.sharding.SingleDeviceSharding(devices[0])
    if len(devices) > 1:
        place = jax.NamedSharding(jax.sharding.Mesh(devices, ("i",)), jax.P("i"))

    @functools.partial(jax.jit, out_shardings=place)
    def make(number: Any, version: Any) -> Any:
        word = jnp.arange(size, dtype=jnp.uint32) * (2 * version + 1) + number
        return jax.lax.bitcast_convert_type((word >> 3).astype(jnp.uint16), jnp.bfloat16)

    @jax.jit
    def differ(x: Any, number: Any, version: Any) -> Any:
        bits = [jax.lax.bitcast_convert_type(y, jnp.uint16) for y in (x, make(number, version))]
        return jnp.sum(bits[0] != bits[1])

    def tree(version: int) -> dict[str, Any]:
        return {f"w{n:03}": make(jnp.uint32(n), jnp.uint32(version)) for n in range(_ARRAYS.value)}

    def wrong(got: dict[str, Any], version: int) -> int:
        return sum(
            int(differ(x, jnp.uint32(n), jnp.uint32(version)))
            for n, x in enumerate(got[name] for name in sorted(got))
        )

    found: dict[str, list[Any]] = {}

    def note(what: str, value: Any) -> None:
        found.setdefault(what, []).append(value)

    total = _GIB.value * 2**30
    bytes_ = int(3.1 * total) + (64 << 20)
    store = jax_cxl.Store(f"shm:gpu_weights?size={-(-bytes_ >> 20)}MiB")
    like = {
        f"w{n:03}": jax.ShapeDtypeStruct((size,), jnp.bfloat16, sharding=place)
        for n in range(_ARRAYS.value)
    }
    trains = _ROLE.value == "trainer"
    weights = None
    for version in range(1, 1 + _ROUNDS.value):
        if trains:
            weights = None
            weights = jax.block_until_ready(tree(version))
        meet()
        if trains:
            note("publish", _timed(lambda w=weights: (store.publish("w", w), store.flush("w")))[0])
            meet()
        else:
            meet()
            # The trainer has published everything, and now all readers read at the same time.
            seconds, (number, got) = _timed(
                lambda: jax.block_until_ready(tuple(store.read("w", like)))
            )
            note("read", seconds)
            note("wrong", wrong(got, version) + (number + 1 != version))
        meet()
        if on_gpu and not trains:
            if _TRAINER_GPUS.value == 1:
                with store.view("w", like) as view:
                    seconds, got = _second_copy(view.tree, place)
                note("wrong in view", wrong(got, version))
            else:  # A view cannot have shards. Copy from other host memory: the bound is the same.
                host = jax.device_put(got, place.with_memory_kind("pinned_host"))
                seconds, got = _second_copy(host, place)
                del host
            note("read: bound", seconds)
        got = None
        meet()
    if _TRANSFER.value and _TRAINER_GPUS.value == 1:
        _transfer(meet, note, weights, like, trains, wrong)
    if on_gpu and trains:  # Last, because this overwrites what was published.
        for _ in range(_ROUNDS.value):
            note("publish: bound", _timed(lambda: _only_copy(store, weights))[0])
    store.close()
    if _ORBAX.value:
        _orbax(meet, note, weights, like, trains)
    print(json.dumps({"role": _ROLE.value, **found}), flush=True)


def _only_copy(store: Any, tree: Any) -> None:
    """Copies a tree into the store's memory, and does nothing else, for "publish: bound"."""
    devices = store._names.devices()  # the memory under the store
    copies = devices.copies
    numbers = []
    at = devices.core.base + (1 << 30)
    for shard in itertools.chain(*zip(*(x.addressable_shards for x in tree.values()), strict=True)):
        copy = shard.data.unsafe_buffer_pointer(), at, shard.data.nbytes
        numbers.append(copies.start(shard.device.local_hardware_id, [copy]))
        at += shard.data.nbytes
    for number in numbers:
        copies.wait(number)


def _transfer(meet: Any, note: Any, weights: Any, like: Any, trains: bool, wrong: Any) -> None:
    """Measures jax.experimental.transfer: all readers pull the arrays from the trainer at once."""
    import jax
    from jax.experimental import transfer

    where = pathlib.Path(_FOLDER.value, "transfer")
    host = "127.0.0.1:0"
    server = transfer.start_transfer_server(jax.devices()[0].client, host, [host] * 4)
    if trains:
        where.write_text(server.address())
    meet()
    connection = None if trains else server.connect(where.read_text())
    names = [f"reader{n}" for n in range(_READERS.value)]
    for turn in range(_ROUNDS.value):
        if trains:
            for number in range(len(names)):
                server.await_pull(turn * len(names) + number, weights)
        meet()
        if not trains:
            number = turn * len(names) + names.index(_ROLE.value)
            seconds, got = _timed(lambda n=number: jax.block_until_ready(connection.pull(n, like)))
            note("jax.experimental.transfer", seconds)
            note("wrong in transfer", wrong(got, _ROUNDS.value))
            del got
        meet()


def _orbax(meet: Any, note: Any, weights: Any, like: Any, trains: bool) -> None:
    import jax
    import orbax.checkpoint as ocp

    path = pathlib.Path(_ORBAX_FOLDER)
    for _ in range(2):
        if trains:
            shutil.rmtree(path, ignore_errors=True)
            with ocp.StandardCheckpointer() as checkpointer:
                seconds, _ = _timed(
                    lambda c=checkpointer: (c.save(path, weights), c.wait_until_finished())
                )
                note("orbax: save", seconds)
        meet()
        if not trains:
            with ocp.StandardCheckpointer() as checkpointer:
                seconds, got = _timed(
                    lambda c=checkpointer: jax.block_until_ready(c.restore(path, like))
                )
                note("orbax: restore", seconds)
                del got
        meet()
    if trains:
        shutil.rmtree(path, ignore_errors=True)


def _start(role: str, folder: str, gpus: Iterable[int]) -> subprocess.Popen[str]:
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    command = [sys.executable, __file__, f"--role={role}", f"--folder={folder}", *sys.argv[1:]]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def main(_: list[str]) -> None:
    if _ROLE.value:
        _process()
        return
    pathlib.Path("/dev/shm/jax_cxl_store.gpu_weights").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        first = _TRAINER_GPUS.value
        running = [_start("trainer", folder, range(first))]
        for n in range(_READERS.value):
            running.append(_start(f"reader{n}", folder, [first + (0 if _SAME_GPU.value else n)]))
        texts = [process.communicate()[0] for process in running]
    pathlib.Path("/dev/shm/jax_cxl_store.gpu_weights").unlink(missing_ok=True)
    if any(process.returncode for process in running):
        sys.exit("a process failed")
    results = [json.loads(text.strip().splitlines()[-1]) for text in texts]
    rows = []
    for result in results:
        for what, values in result.items():
            if what == "role" or "wrong" in what:
                continue
            median = statistics.median(values)
            rate = _GIB.value * 2**30 / median / 1e9
            rows.append(
                {
                    "process": result["role"],
                    "what": what,
                    "seconds": [round(value, 4) for value in values],
                    "median": round(median, 4),
                    "GB/s": round(rate, 2),
                }
            )
    wrong = sum(
        sum(values) for result in results for what, values in result.items() if "wrong" in what
    )
    for row in rows:
        print(json.dumps(row))
    print(json.dumps({"wrong": wrong, "GiB": _GIB.value}))
    if _JSON.value:
        pathlib.Path(_JSON.value).write_text(json.dumps({"rows": rows, "wrong": wrong}, indent=1))
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
