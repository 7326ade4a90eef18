"""Kills publishers and readers of a store at random instants, and checks what readers see.

A publisher publishes version after version. Readers read the versions, by copies and by views. Each
process is killed at a random instant and started again. Half of the publishers die in the middle of
a write. Each reader compares every version that it gets with what was published, byte by byte.

python -m lab.kills.store_kills --kills=500 [--pool=incoherent]
"""

import json
import os
import pathlib
import random
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import deadly
import job
import numpy as np
from absl import app, flags

import jax_cxl
from lab.kills import processes

_KILLS = flags.DEFINE_integer("kills", 500, "how often a publisher, and a reader, is killed")
_READERS = flags.DEFINE_integer("readers", 2, "how many readers there are at a time")
_POOL = flags.DEFINE_enum(
    "pool", "file", ["file", "incoherent"], "incoherent emulates caches, see docs/protocol.md"
)
_LEAVE_OUT = flags.DEFINE_string(
    "leave_out", "", "what the emulated caches leave out, as other.invalidate: must fail"
)
_PATHS = flags.DEFINE_integer("paths", 1, "paths of the store")
_PARITY = flags.DEFINE_integer("parity", 0, "parity of the store")
_SEED = flags.DEFINE_integer("seed", None, "seed; by default a new one")
_BREAK = flags.DEFINE_bool("break", False, "lets readers lease nothing, which they must notice")

_NAME = "weights"


def _tree(version: int) -> dict[str, Any]:
    count = np.arange(700_000, dtype=np.uint32)
    return {
        "changes": count * np.uint32(2 * version + 1),
        "stays": count,
        "sometimes": count[: 1 << 18] + np.uint32(version // 5),
        "version": version,
    }


def _publish(where: str, rng: random.Random) -> None:
    store = jax_cxl.Store(where)
    for of in store.list():
        assert len(of.versions) >= 1, "the last version is gone"
    # Without `version`, it would not use the number of a version that a killed publisher has begun.
    version = _next(store)
    store.publish(_NAME, _tree(version), version=version)
    store.flush(_NAME)
    if rng.random() < 0.5:
        deaths = deadly.Deaths(rng.randrange(1, 60))
        store._names.devices().core = deadly.DeadlyMemory(store._names.devices().core, deaths)
    while True:
        version = store.publish(_NAME, _tree(version + 1))
        if rng.random() < 0.2:
            time.sleep(0.003 * rng.random())


def _next(store: jax_cxl.Store) -> int:
    listed = store.list()
    return listed[0].versions[0] + 1 if listed else 0


def _read(where: str, rng: random.Random, seen: pathlib.Path) -> None:
    store = jax_cxl.Store(where)
    if _BREAK.value:
        store._names.devices()._sessions = _NoLeases(store._names.devices().sessions)
    version, last = None, -1
    while True:
        if rng.random() < 0.3 and _PATHS.value == 1:
            view = store.view(_NAME)
            held, tree = view.version, dict(view.tree)
            time.sleep(0.02 * rng.random())
            view.check()
        else:
            into = version if rng.random() < 0.5 else None
            version = store.read(_NAME, newer_than=last, timeout=120, into=into)
            held, tree = version
            view = None
        expected = _tree(held)
        for name, array in expected.items():
            if not np.array_equal(tree[name], array):
                seen.with_suffix(".wrong").write_text(f"{name} of version {held} is wrong")
                os._exit(3)
        last = max(last, held)
        del tree, view
        with seen.open("a") as file:
            file.write(f"{held}\n")


class _NoLeases:
    """Wraps sessions so that their leases protect nothing, as a negative control."""

    def __init__(self, sessions: Any):
        self._sessions = sessions

    def add_lease(self, what: int) -> Any:
        del what
        return self._sessions.add_lease(1 << 60)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sessions, name)


def _start(run: Callable[[], None], seed: int) -> int:
    def in_this_pool() -> None:
        if _POOL.value == "incoherent":
            os.environ |= job.incoherent_environment(seed, _LEAVE_OUT.value)
            sys.path.insert(0, str(job.INTERPOSE))
            runpy.run_path(str(job.INTERPOSE / "sitecustomize.py"))
        run()

    return processes.start(in_this_pool)


def main(_: list[str]) -> None:
    seed = _SEED.value if _SEED.value is not None else random.randrange(1 << 30)
    rng = random.Random(seed)
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jax_cxl_store_kills.", dir=parent) as folder:
        paths = ",".join(f"{folder}/{i}" for i in range(_PATHS.value))
        where = f"file:{paths}?size={128 << 20}"
        if _POOL.value == "incoherent":
            where += "&coherence=flush"
        jax_cxl.Store(where, parity=_PARITY.value)._names.made()  # empty
        seen = pathlib.Path(folder, "seen")
        seen.touch()

        def publisher() -> int:
            own = random.Random(rng.random())
            return _start(lambda: _publish(where, own), rng.randrange(1 << 30))

        def reader() -> int:
            own = random.Random(rng.random())
            return _start(lambda: _read(where, own, seen), rng.randrange(1 << 30))

        publishing = publisher()
        while not jax_cxl.Store(where).list() or not jax_cxl.Store(where).list()[0].versions:
            time.sleep(0.05)
        readers = [reader() for _ in range(_READERS.value)]
        killed = 0
        while killed < _KILLS.value:
            time.sleep(rng.uniform(0.4, 1.2))  # It starts JAX first.
            if wrong := list(pathlib.Path(folder).glob("*.wrong")):
                raise SystemExit(wrong[0].read_text())
            processes.kill(publishing)
            publishing = publisher()
            time.sleep(rng.uniform(0.02, 0.2))
            victim = rng.randrange(len(readers))
            processes.kill(readers[victim])
            readers[victim] = reader()
            killed += 1
        versions = [int(line) for line in seen.read_text().split()]
        published = jax_cxl.Store(where).list()[0].versions[0]
        for process in (publishing, *readers):
            processes.kill(process)
        if wrong := list(pathlib.Path(folder).glob("*.wrong")):
            raise SystemExit(wrong[0].read_text())
    row = {
        "pool": _POOL.value,
        "publishers_killed": killed,
        "readers_killed": killed,
        "published": published + 1,
        "read": len(versions),
        "different_versions_read": len(set(versions)),
        "wrong": 0,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    app.run(main)
