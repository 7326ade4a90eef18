"""Kills a trainer and a server at random instants, and checks the weights that the server uses.

    python -m lab.kills.served_kills --kills=300

The trainer publishes version after version, from JAX or from PyTorch, which overwrites its tensors
after each `publish`. Half of the trainers die in the middle of a write. The server has tensors of
PyTorch, some of them only parts of what the trainer publishes, as with tensor parallelism. It reads
each new version into them, all of it or only what has changed, and then compares every element with
what was published. After a trainer has died, the server must come to the last whole version and go
on. After a server has died, the next one must read that version or a newer one.

With --break the server uses its tensors while they are read, and must notice that they are torn.
"""

import contextlib
import functools
import json
import mmap
import os
import random
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import deadly
import ml_dtypes
import numpy as np
import shared_folder
import torch
from absl import app, flags

import jax_cxl
from lab.kills import processes

_KILLS = flags.DEFINE_integer("kills", 300, "how many trainers and servers are killed, in all")
_SEED = flags.DEFINE_integer("seed", None, "seed; by default a new one")
_BREAK = flags.DEFINE_bool("break", False, "uses tensors while they are read, which must fail")

_NAME, _SECONDS = "weights", 240

# (shape, dtype, how many versions have the same content)
_LEAVES: dict[str, tuple[tuple[int, ...], Any, int]] = {
    "embed": ((400, 700), np.float32, 1),
    "q": ((400, 600), ml_dtypes.bfloat16, 1),
    "o": ((400, 600), ml_dtypes.bfloat16, 1),
    "sometimes": ((1 << 17,), np.int32, 5),
    "stays": ((1 << 18,), np.int32, 1 << 30),
    "version": ((), np.int32, 1),
}


# Numbers that this process shares with the others:
_PUBLISHED, _PUBLISHING = 0, 1  # how many versions of this trainer; whether it is in `publish`
_CHECKED, _VERSION = 2, 3  # how often this server has checked its weights, and of which version
_READING, _READS, _TORN, _WRONG = 4, 5, 6, 7  # whether it is in `read`; counts of all servers


@functools.lru_cache(maxsize=4 * len(_LEAVES))
def _leaf(name: str, version: int) -> np.ndarray:
    shape, dtype, same = _LEAVES[name]
    if name == "version":
        return np.array(version, dtype)
    bits = np.arange(np.prod(shape), dtype=np.uint32) * np.uint32(2 * (version // same) + 1)
    bits ^= np.uint32(zlib.crc32(name.encode()))
    return bits.astype(f"u{np.dtype(dtype).itemsize}").view(dtype).reshape(shape)


def _torch(x: np.ndarray) -> torch.Tensor:
    bits = torch.from_numpy(x.reshape(-1).view(np.uint8))
    return bits.view(getattr(torch, x.dtype.name)).reshape(x.shape)


def _bits(x: torch.Tensor) -> np.ndarray:
    x = x.contiguous().reshape(-1)
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32).numpy()


def _newest(store: jax_cxl.Store) -> int:
    listed = store.list()
    return listed[0].versions[0] if listed and listed[0].versions else -1


def _train(where: str, rng: random.Random, board: np.ndarray) -> None:
    own = {name: _torch(_leaf(name, 0)) for name in _LEAVES}
    jnp: Any = None
    if rng.random() < 0.1:  # Its import takes longer than all the rest.
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax.numpy as jnp

    def tree(version: int) -> dict[str, Any]:
        leaves = {name: _leaf(name, version) for name in _LEAVES}
        if jnp is not None:
            return {name: jnp.array(x) for name, x in leaves.items()}
        for name, x in leaves.items():
            own[name].copy_(_torch(x))
        return own

    store = jax_cxl.Store(where)
    version = _newest(store) + 1  # A killed trainer may have begun it.
    die_in_a_write = rng.random() < 0.5
    while True:
        weights = tree(version)
        board[_PUBLISHING] = 1
        store.publish(_NAME, weights, version=version)
        if board[_PUBLISHED] == 0 or rng.random() < 0.6:
            store.flush(_NAME)
            if board[_PUBLISHED] == 0 and die_in_a_write:
                deaths = deadly.Deaths(rng.randrange(1, 60))
                store._names.devices().core = deadly.DeadlyMemory(
                    store._names.devices().core, deaths
                )
            board[_PUBLISHING] = 0
            time.sleep(0.02 * rng.random())
        board[_PUBLISHED] += 1
        version += 1


def _serve(where: str, rng: random.Random, board: np.ndarray, at_least: int) -> None:
    torch.set_num_threads(1)
    rank = rng.randrange(2)
    parts: dict[str, Any] = dict.fromkeys(_LEAVES, np.s_[...])
    parts |= {
        "q": np.s_[200 * rank : 200 * (rank + 1)],
        "o": np.s_[:, 300 * rank : 300 * (rank + 1)],
    }
    into, weights = {}, {}
    for name, part in parts.items():
        weights[name] = torch.empty_like(_torch(_leaf(name, 0))[part].contiguous())
        into[name] = weights[name] if part is ... else (weights[name], part)

    def check(version: int) -> None:
        for name, x in weights.items():
            bits = _bits(x)
            if np.array_equal(bits, _bits(_torch(_leaf(name, version))[parts[name]])):
                continue
            known = np.zeros(bits.shape, bool)
            for other in range(max(0, version - 20), version + 20):
                known |= bits == _bits(_torch(_leaf(name, other))[parts[name]])
            board[_TORN] += int(known.all())
            board[_WRONG] += int(not known.all())
            print(
                f"{name} of version {version} is {'torn' if known.all() else 'wrong'}", flush=True
            )
            os._exit(2)

    def read(into: Any) -> Any:
        board[_READING] = 1
        found = store.read(_NAME, into=into, newer_than=-1, timeout=_SECONDS)
        board[_READING] = 0
        board[_READS] += 1
        return found

    store = jax_cxl.Store(where)
    last = read(into)
    if last.version < at_least:
        raise SystemExit(f"version {last.version} is older than {at_least}, which was whole")
    if _BREAK.value:
        threading.Thread(target=lambda: [read(into) for _ in iter(int, 1)], daemon=True).start()
        while True:
            version = int(weights["version"])
            check(version)
            board[_VERSION] = version
            board[_CHECKED] += 1
    while True:
        check(last.version)
        board[_VERSION] = last.version
        board[_CHECKED] += 1
        time.sleep(0.002)
        if store.wait(_NAME) > last.version:
            last = read(last if rng.random() < 0.5 else into)


def _wait(board: np.ndarray, until: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + _SECONDS
    while not until():
        if board[_TORN] or board[_WRONG]:
            raise SystemExit("the server has found wrong weights")
        if time.monotonic() > end:
            raise SystemExit(f"{what} in {_SECONDS} seconds: {board[:8].tolist()}")
        time.sleep(0.002)


def _sweep(where: str, rng: random.Random, board: np.ndarray) -> dict[str, int]:
    store, running = jax_cxl.Store(where), {}
    store._names.made()  # empty
    counts = dict.fromkeys(("trainers", "in publish", "servers", "in a read"), 0)

    def start_trainer() -> None:
        board[_PUBLISHED], own = 0, random.Random(rng.random())
        running["trainer"] = processes.start(lambda: _train(where, own, board))

    def start_server() -> None:
        whole, own = _newest(store), random.Random(rng.random())
        board[_CHECKED] = board[_READING] = 0
        running["server"] = processes.start(lambda: _serve(where, own, board, whole))

    def goes_on() -> bool:
        return board[_VERSION] == _newest(store) and board[_CHECKED] > 2

    start_trainer()
    with contextlib.ExitStack() as stack:
        for name in ("trainer", "server"):
            stack.callback(lambda name=name: name in running and processes.kill(running.pop(name)))
        _wait(board, lambda: board[_PUBLISHED], "no version")
        start_server()
        while counts["trainers"] + counts["servers"] < _KILLS.value:
            if rng.random() < 0.8:
                _wait(board, lambda: board[_CHECKED] and board[_PUBLISHED], "nothing happens")
            time.sleep(0.4 * rng.random())
            if rng.random() < 0.5:
                processes.kill(running.pop("trainer"))
                counts["trainers"] += 1
                counts["in publish"] += int(board[_PUBLISHING])
                board[_CHECKED] = 0
                _wait(board, goes_on, "the server does not come to the last whole version")
                start_trainer()
            else:
                processes.kill(running.pop("server"))
                counts["servers"] += 1
                counts["in a read"] += int(board[_READING])
                start_server()
    return counts | {"versions": _newest(store) + 1}


def main(_: list[str]) -> None:
    """Kills the processes, and prints a summary."""
    seed = _SEED.value if _SEED.value is not None else random.randrange(1 << 30)
    board, began = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64), time.monotonic()
    with shared_folder.folder("jax_cxl_served_kills.") as folder:
        counts = _sweep(f"file:{folder}/a?size=64MiB", random.Random(seed), board)
    found = {"reads": _READS, "torn": _TORN, "wrong": _WRONG}
    counts |= {name: int(board[index]) for name, index in found.items()} | {"seed": seed}
    print(json.dumps(counts | {"seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    app.run(main)
