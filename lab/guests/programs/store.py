"""Process 0 publishes versions of a tree in a store. Meanwhile process 1 reads and views them.

Each process is a job by itself. They meet only in the memory of the store.
"""

import sys
import time
from typing import Any

import numpy as np

import jax_cxl

_VERSIONS = 30


def _tree(version: int) -> dict[str, np.ndarray]:
    count = np.arange(500_000, dtype=np.uint32)
    return {"changes": count * np.uint32(2 * version + 1), "stays": count}


def _check(version: int, tree: dict[str, Any]) -> None:
    for name, expected in _tree(version).items():
        assert np.array_equal(tree[name], expected), f"{name} of version {version}"


def _publish(where: str) -> None:
    with jax_cxl.Store(where) as store:
        store.publish("weights", _tree(0), version=0)
        store.flush("weights")
        store.read("reader is ready", newer_than=-1, timeout=600)
        for version in range(1, _VERSIONS + 1):
            store.publish("weights", _tree(version), version=version)
            store.flush("weights")
            time.sleep(0.2)
        store.read("reader is done", newer_than=-1, timeout=600)
    print(f"PUBLISHED {_VERSIONS} versions, right")


def _tell(store: jax_cxl.Store, name: str) -> None:
    store.publish(name, {"a": np.zeros(1)})
    store.flush(name)


def _read(where: str) -> None:
    with jax_cxl.Store(where) as store:
        kept = store.wait("weights", newer_than=-1, timeout=600)
        assert kept == 0, f"version {kept} before the reader is ready"
        view = store.view("weights")
        previous = store.read("weights")
        _tell(store, "reader is ready")
        reads = 1
        while previous.version < _VERSIONS:
            newer = previous.version
            previous = store.read("weights", newer_than=newer, timeout=600, into=previous)
            assert previous.version > newer
            _check(previous.version, previous.tree)
            reads += 1
        # The view still shows its version, although newer versions have used all other memory
        # since.
        view.check()
        _check(view.version, view.tree)
        _tell(store, "reader is done")
    print(f"READ {reads} of {_VERSIONS + 1} versions, and a view of version {view.version}: right")


(_read if sys.argv[1] == "1" else _publish)(sys.argv[2])
