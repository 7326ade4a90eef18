"""Process 0 makes two tables in a store and changes one of them. Meanwhile process 1 takes rows.

Each process is a job by itself. They meet only in the memory of the store.
"""

import sys
import time

import jax
import numpy as np

import jax_cxl

_ROWS, _WIDTH, _STEPS = 500, 300, 20


def _first() -> np.ndarray:
    return np.repeat(np.arange(_ROWS, dtype=np.int32)[:, None], _WIDTH, axis=1)


def _write(where: str) -> None:
    jax_cxl.Table.create(where, "constant", _first()).close()
    ids = np.arange(_ROWS, dtype=np.int32)
    with jax_cxl.Table.create(where, "trained", _first(), trained=True) as table:
        with jax_cxl.Store(where) as store:
            store.read("reader is ready", newer_than=-1, timeout=600)
        for step in range(1, _STEPS + 1):
            assert table.add(ids, np.ones((_ROWS, _WIDTH), np.int32)) == step
            time.sleep(0.2)
        assert (np.asarray(table.take(ids)) == _first() + _STEPS).all()
    print(f"WROTE {_STEPS} steps, right")


def _read(where: str) -> None:
    constant = jax_cxl.Table.open(where, "constant", timeout=600)
    assert (constant.view() == _first()).all()
    table = jax_cxl.Table.open(where, "trained", timeout=600)
    with jax_cxl.Store(where) as store:
        store.publish("reader is ready", {"a": np.zeros(1)})
        store.flush("reader is ready")
    take = jax.jit(table.take)
    ids = np.arange(_ROWS, dtype=np.int32)
    seen, takes = set(), 0
    end = time.monotonic() + 600
    while table.step < _STEPS and time.monotonic() < end:
        steps = np.asarray(take(ids)) - _first()
        assert (steps == steps[:, :1]).all(), "a row has parts of two steps"
        seen.update(steps[:, 0].tolist())
        takes += 1
    assert (np.asarray(take(ids)) == _first() + _STEPS).all()
    print(f"READ right: {takes} takes saw {len(seen)} of {_STEPS} steps")


(_read if sys.argv[1] == "1" else _write)(sys.argv[2])
