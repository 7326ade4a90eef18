"""Checks the rows that programs take from tables on this machine's GPUs or CPUs, against NumPy.

    python -m lab.fuzz.fuzz_tables [--steps=200]

It checks all dtypes and modes, rows of 1 to 5,000 bytes, ids outside of the table, and errors that
name an id. It also checks a started `take` beside other work, the caches of GPUs, and a trained
table, whose rows change while devices take them. To run it with memcheck: `compute-sanitizer python
-m lab.fuzz.fuzz_tables --steps=5`.
"""

import argparse
import threading

import jax
import jax.numpy as jnp
import numpy as np
import shared_folder

import jax_cxl
from tests.tables import tables

_ROWS = 997


def _ids(shape: tuple[int, ...]) -> np.ndarray:
    ids = np.random.default_rng(0).integers(-2 * _ROWS, 2 * _ROWS, shape, np.int32)
    edges = [0, -1, _ROWS - 1, _ROWS, -_ROWS, -_ROWS - 1, 2**31 - 1, -(2**31)]
    ids.reshape(-1)[: len(edges)] = edges
    return ids


def _check_dtypes(store: jax_cxl.Store) -> None:
    ids = _ids((70, 31))
    for dtype in tables.DTYPES:
        for width in ((), (1,), (3,), (5, 16), (625,)):
            rows = tables.random_rows((_ROWS, *width), dtype)
            with jax_cxl.Table.create(store, f"{dtype} {width}", rows) as table:
                for mode in ("fill", "clip"):
                    found = jax.jit(lambda ids, t=table, m=mode: t.take(ids, mode=m))(ids)
                    expected = tables.expected_take(rows, ids, mode)
                    assert tables.bits(found) == tables.bits(expected), (dtype, width, mode)
                inside = ids.clip(-_ROWS, _ROWS - 1)
                take = jax.jit(lambda ids, t=table: t.take(ids, mode="error"))
                expected = tables.expected_take(rows, inside, "fill")
                assert tables.bits(take(inside)) == tables.bits(expected), (dtype, width)
                wrong = inside.copy()
                wrong[50, 3] = _ROWS + 5
                try:
                    jax.block_until_ready(take(wrong))
                except jax_cxl.InvalidCollectiveError as error:
                    assert f"id {_ROWS + 5} at position {50 * 31 + 3}" in str(error), error
                else:
                    raise AssertionError("no error")
            store.delete(f"{dtype} {width}")
        print(f"{dtype}: right", flush=True)


def _check_started(store: jax_cxl.Store) -> None:
    """Checks started takes: two takes of the next batch run beside products of matrices."""
    ids = _ids((20, 700)).clip(-_ROWS, _ROWS - 1)
    for dtype, width in (("float32", 1000), ("uint16", 3), ("int4", 16), ("uint8", 1)):
        rows = tables.random_rows((_ROWS, width), dtype)
        with jax_cxl.Table.create(store, f"started {dtype}", rows) as table:

            def step(carry, ids, table=table):
                x, before, last = carry
                first, second = jax_cxl.start(table.take, ids), jax_cxl.start(table.take, ids[::-1])
                x = second.tie(first.tie(x))
                x = jnp.tanh(x @ x.T @ x / 1000)
                taken = second.done(after=x)
                return (x, first.done(), taken), (before, last)

            def loop(x, ids, table=table, step=step):
                start = table.take(ids[0])
                return jax.lax.scan(step, (x, start, start[::-1]), ids)

            mesh = jax.sharding.Mesh(jax.local_devices(), ("i",))
            count = mesh.size
            spread = jax.shard_map(
                loop,
                mesh=mesh,
                in_specs=(jax.P("i"), jax.P(None, "i")),
                out_specs=((jax.P("i"),) * 3, (jax.P(None, "i"),) * 2),
                check_vma=False,
            )
            every = np.tile(ids, (1, count))
            x = np.ones((1000 * count, 1000), np.float32)
            (_, last, flipped), (taken, flips) = jax.jit(spread)(x, every)
            expected = tables.expected_take(rows, ids, "fill")
            for found, wanted in (
                (last, expected[-1]),
                (flipped, expected[-1, ::-1]),
                (taken, expected[[0, *range(19)]]),
                (flips, expected[[0, *range(19)], ::-1]),
            ):
                for part in np.split(np.asarray(found), count, axis=wanted.ndim - rows.ndim):
                    assert tables.bits(part) == tables.bits(wanted), (dtype, width)
        store.delete(f"started {dtype}")
    print("started: right", flush=True)


def _check_caches(store: jax_cxl.Store) -> None:
    """Checks tables with caches of rows, which are refreshed while GPUs take rows."""
    rng = np.random.default_rng(0)
    for dtype, width in (("float32", 64), ("float32", 1000), ("bfloat16", 3), ("int4", 5)):
        rows = tables.random_rows((_ROWS, width), dtype)
        jax_cxl.Table.create(store, f"cached {dtype} {width}", rows).close()
        table = jax_cxl.Table.open(store, f"cached {dtype} {width}", cache_rows=100)
        take = jax.jit(table.take)
        stop, wrong = threading.Event(), []

        def read(device, take=take, rows=rows, stop=stop, wrong=wrong):
            own_rng = np.random.default_rng(device.id)
            while not stop.is_set():
                ids = (own_rng.zipf(1.3, 5000) * 7919 % (_ROWS + 9)).astype(np.int32)
                found = np.asarray(take(jax.device_put(ids, device)))
                wrong.append(
                    tables.bits(found) != tables.bits(tables.expected_take(rows, ids, "fill"))
                )

        readers = [threading.Thread(target=read, args=(device,)) for device in jax.local_devices()]
        for reader in readers:
            reader.start()
        try:
            ids = jax.device_put((rng.zipf(1.3, 5000) * 7919 % _ROWS).astype(np.int32))
            for _ in range(10):
                take(ids).block_until_ready()
                table.refresh_cache()
        finally:
            stop.set()
            for reader in readers:
                reader.join()
        take(ids).block_until_ready()
        stats = table.stats()
        assert not any(wrong), f"{sum(wrong)} of {len(wrong)} takes are wrong: {dtype} {width}"
        assert stats.cache_found > 0, stats
        table.close()
        store.delete(f"cached {dtype} {width}")
        print(
            f"cached {dtype} {width}: hit rate {stats.cache_hit_rate:.2f} with refreshes",
            flush=True,
        )


def _check_trained(store: jax_cxl.Store, steps: int) -> None:
    rows = np.zeros((300, 1000), np.int32)
    table = jax_cxl.Table.create(store, "trained", rows, trained=True)
    take = jax.jit(table.take)
    ids = np.arange(300, dtype=np.int32)
    stop, torn, seen = threading.Event(), [], set()

    def read(device: jax.Device) -> None:
        own = jax.device_put(ids, device)
        while not stop.is_set():
            found = np.asarray(take(own))
            torn.append(int((found != found[:, :1]).any(1).sum()))
            seen.update(found[:, 0].tolist())

    readers = [threading.Thread(target=read, args=(device,)) for device in jax.local_devices()]
    for reader in readers:
        reader.start()
    try:
        for _ in range(steps):
            table.add(ids, np.ones_like(rows))
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not sum(torn), f"{sum(torn)} rows have parts of two steps"
    assert (np.asarray(take(ids)) == steps).all()
    table.close()
    print(f"trained: {len(torn)} takes during {steps} steps saw {len(seen)} of them")


def main() -> None:
    """Runs all checks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    with shared_folder.folder("jax_cxl_check.") as folder:
        store = jax_cxl.Store(f"file:{folder}/store?size=96MiB")
        _check_dtypes(store)
        _check_started(store)
        if jax.default_backend() == "gpu":
            _check_caches(store)
        _check_trained(store, options.steps)
    print(f"all right on {jax.local_devices()}")


if __name__ == "__main__":
    main()
