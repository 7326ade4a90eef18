"""Compares `Table.take` with other ways to fetch rows of a table, and checks the values.

    python benchmarks/tables/gather.py [--gib=8] [--row-bytes=256,1024,4096] [--json=FILE]

On GPUs the other ways are a plain CUDA kernel that gathers rows of the same pinned memory (it needs
nvcc), a plain copy of as many bytes, and NumPy on the host with `device_put`. All ways run with one
GPU, and with 2, 4 and 8 GPUs at once if the machine has them. On CPUs the other ways are `np.take`
into a fresh array, and `jnp.take` of a resident array, for which the machine needs twice the memory
of the table.

On GPUs and CPUs, the benchmark also takes the rows of the next batch while products of matrices
run. On GPUs it takes rows whose random ids follow Zipf's law, without a cache and with a cache of
1/32 of the rows.
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# JAX must leave memory free, because the plain kernel allocates its own.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np

import jax_cxl
from benchmarks.collectives import device_time
from jax_cxl._commands.measuring import results_file

_NAME = "gather_benchmark"
_PLAIN = pathlib.Path(__file__).with_name("plain_gather.cu")
# Sets of ids take turns. All sets together have this many bytes of rows, more than caches keep.
_BYTES_OF_SETS = 1 << 30
_MOST_SETS = 64


def _values(rows: Any, columns: int, lib: Any) -> Any:
    """Returns the right values of the rows with the ids `rows`: uint32, (ids, columns)."""
    columns = lib.arange(columns, dtype=np.uint32)
    return rows[..., None] * np.uint32(2654435761) + columns * np.uint32(40503)


def _blocks(rows: int, columns: int) -> Iterator[np.ndarray]:
    step = max(1, (32 << 20) // (4 * columns))
    for start in range(0, rows, step):
        yield _values(np.arange(start, min(start + step, rows), dtype=np.uint32), columns, np)


class Bench:
    """Measures one table, and keeps the results."""

    def __init__(self, table: jax_cxl.Table, rows: np.ndarray, repeats: int):
        """Prepares measurements of a table of uint32.

        Args:
          table: the table.
          rows: a view of the table.
          repeats: how often each call is measured.
        """
        self.table, self.rows, self.repeats = table, rows, repeats
        self.columns = rows.shape[1]
        self.row_bytes = 4 * self.columns
        self.results: list[dict[str, Any]] = []

    def ids(self, count: int, devices: int = 1) -> np.ndarray:
        """Returns sets of uniform random ids, `count` for each device."""
        shape = self._sets(count), devices * count
        return np.random.default_rng(count).integers(0, self.table.shape[0], shape, np.int32)

    def skewed_ids(self, count: int, devices: int = 1) -> np.ndarray:
        """Returns sets of ids by Zipf's law: a few ids occur often."""
        shape = self._sets(count), devices * count
        ranks = np.random.default_rng(count).zipf(1.2, shape).astype(np.uint64)
        return (ranks * np.uint64(2654435761) % self.table.shape[0]).astype(np.int32)

    def _sets(self, count: int) -> int:
        return min(max(2, _BYTES_OF_SETS // (count * self.row_bytes)), _MOST_SETS)

    def note(self, what: str, count: int, devices: int, seconds: float, **more: float) -> None:
        """Keeps and prints a result.

        Args:
          what: what was measured.
          count: how many rows each device gets.
          devices: number of devices.
          seconds: the time until all devices have their rows.
          **more: further figures.
        """
        rate = devices * count / seconds
        result = {
            "what": what,
            "row_bytes": self.row_bytes,
            "ids": count,
            "devices": devices,
            "us": round(seconds * 1e6, 1),
            "million_rows_per_s": round(rate / 1e6, 3),
            "gb_per_s": round(rate * self.row_bytes / 1e9, 2),
            **more,
        }
        self.results.append(result)
        print(json.dumps(result), flush=True)

    def check(self, found: jax.Array, ids: Any) -> None:
        """Compares the rows `found` with the right rows of these ids."""
        columns = self.columns
        right = jax.jit(lambda x, i: (x == _values(i.astype(np.uint32), columns, jnp)).all())
        if not bool(right(found, ids)):
            raise SystemExit(f"wrong rows of {self.row_bytes} bytes, {len(ids)} ids")


def beside(bench: Bench, count: int, sharding: Any = None, devices: int = 1) -> None:
    """Measures takes that run before products of matrices, and takes that run beside them.

    The products last about as long as a take.
    """
    sets = [jax.device_put(ids, sharding) for ids in bench.ids(count, devices)]
    width = 128 if sharding is None else 1024  # no sharding: a CPU
    x = jax.device_put(jnp.ones((width * devices, width), jnp.bfloat16), sharding)

    def products(x: Any, times: int) -> Any:
        def product(_: int, x: Any) -> Any:
            return jnp.tanh(x @ x / width)

        return jax.lax.fori_loop(0, times, product, x)

    def started(ids: Any, x: Any, times: int) -> Any:
        future = jax_cxl.start(bench.table.take, ids)
        x = products(future.tie(x), times)
        return future.done(after=x), x

    def in_turn(ids: Any, x: Any, times: int) -> Any:
        rows = bench.table.take(ids)
        rows, x = jax.lax.optimization_barrier((rows, x))
        return rows, products(x, times)

    def seconds(function: Callable[..., Any], *arguments: Any) -> float:
        compiled = _jitted(function, sharding)
        return _seconds(lambda: jax.block_until_ready(compiled(*arguments)), bench.repeats)

    alone = seconds(bench.table.take, sets[0])
    once = seconds(lambda x: products(x, 8), x) / 8
    times = max(1, round(alone / once))
    computing = seconds(lambda x: products(x, times), x)
    for what, function in (("take, then products", in_turn), ("started beside", started)):
        taken = seconds(lambda ids, x, function=function: function(ids, x, times), sets[0], x)
        of = {"take_us": round(alone * 1e6, 1), "products_us": round(computing * 1e6, 1)}
        bench.note(what, count, devices, taken, **of)


def cached(bench: Bench, store: jax_cxl.Store, count: int, sharding: Any, devices: int) -> None:
    """Measures takes of ids by Zipf's law, without a cache and with one."""
    sets = [jax.device_put(ids, sharding) for ids in bench.skewed_ids(count, devices)]

    def measure(what: str, table: jax_cxl.Table, **more: float) -> None:
        turn = iter(range(1 << 30))
        take = _jitted(table.take, sharding)
        seconds = _seconds(
            lambda: jax.block_until_ready(take(sets[next(turn) % len(sets)])), bench.repeats
        )
        bench.note(what, count, devices, seconds, **more)

    measure("Zipf, no cache", bench.table)
    rows = bench.table.shape[0]
    with jax_cxl.Table.open(store, _NAME, cache_rows=rows // 32) as table:
        take = _jitted(table.take, sharding)
        for ids in sets[: len(sets) // 2]:
            take(ids).block_until_ready()
        table.refresh_cache()
        before = table.stats()
        for ids in sets[len(sets) // 2 :]:
            bench.check(take(ids), ids)
        after = table.stats()
        found = after.cache_found - before.cache_found
        rate = found / (after.cache_wanted - before.cache_wanted)
        measure("Zipf, a cache of 1/32", table, hit_rate=round(rate, 3))


def _jitted(function: Callable[..., Any], sharding: Any) -> Callable[..., Any]:
    """Returns the jitted function. With `sharding`, it runs on the shards of each device."""
    if sharding is None:
        return jax.jit(function)
    spec = sharding.spec
    mapped = jax.shard_map(
        function, mesh=sharding.mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    return jax.jit(mapped)


def _seconds(run: Callable[[], Any], repeats: int) -> float:
    """Returns the median time of a call of `run`. The first call does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def on_cpu(bench: Bench, counts: Sequence[int]) -> None:
    """Runs all measurements on a CPU."""
    rows = np.array(bench.rows)
    resident = jax.block_until_ready(jnp.asarray(rows))
    take = jax.jit(bench.table.take)
    resident_take = jax.jit(lambda rows, ids: jnp.take(rows, ids, axis=0, mode="clip"))
    for count in counts:
        sets = bench.ids(count)
        device_sets = [jax.block_until_ready(jnp.asarray(ids)) for ids in sets]
        bench.check(take(device_sets[0]), device_sets[0])

        def measure(
            what: str, run: Callable[[int], Any], count: int = count, turns: int = len(sets)
        ) -> None:
            turn = iter(range(1 << 30))
            seconds = _seconds(
                lambda: jax.block_until_ready(run(next(turn) % turns)), bench.repeats
            )
            bench.note(what, count, 1, seconds)

        measure("Table.take", lambda i, s=device_sets: take(s[i]))
        measure("np.take, a fresh array", lambda i, s=sets: np.take(rows, s[i], axis=0))
        measure("jnp.take, resident", lambda i, s=device_sets: resident_take(resident, s[i]))
        beside(bench, count)


def on_gpus(bench: Bench, store: jax_cxl.Store, counts: Sequence[int], plain: ctypes.CDLL) -> None:
    """Runs all measurements on one GPU, and on several GPUs at once."""
    gpus = jax.local_devices()
    address = bench.rows.ctypes.data
    for devices in (d for d in (1, 2, 4, 8) if d <= len(gpus)):
        mesh = jax.sharding.Mesh(gpus[:devices], ("i",))
        sharding = jax.NamedSharding(mesh, jax.P("i"))
        per_device = jax.P("i")
        take = jax.jit(
            jax.shard_map(bench.table.take, mesh=mesh, in_specs=per_device, out_specs=per_device)
        )
        take(jax.device_put(np.zeros(devices, np.int32), sharding))  # registers the memory
        _copies(bench, address, devices, plain)
        for count in counts:
            if count * bench.row_bytes * 3 > _memory(gpus[0]):
                print(f"{count} rows of {bench.row_bytes} bytes do not fit", file=sys.stderr)
                continue
            sets = bench.ids(count, devices)
            device_sets = [jax.device_put(ids, sharding) for ids in sets]
            bench.check(take(device_sets[0]), device_sets[0])

            def run(sets: Any = device_sets, take: Any = take) -> None:
                for ids in sets:
                    out = take(ids)
                jax.block_until_ready(out)

            seconds = _seconds(run, bench.repeats) / len(sets)
            bench.note("Table.take, with dispatch", count, devices, seconds)
            try:
                events = device_time.trace(run)
                kernels = [e.duration * 1e-9 for e in events if "Take" in e.name]
                bench.note("Table.take, the kernel", count, devices, statistics.median(kernels))
            except (device_time.NoDeviceTimeError, statistics.StatisticsError) as error:
                print(f"no times of kernels: {error}", file=sys.stderr)
            _plain(bench, address, sets.reshape(len(sets), devices, count), plain)
            _host(bench, sets, sharding, devices)
            beside(bench, count, sharding, devices)
            cached(bench, store, count, sharding, devices)


def _memory(gpu: jax.Device) -> int:
    return (gpu.memory_stats() or {}).get("bytes_limit", 64 << 30)


def _on_all(devices: int, run: Callable[[int], float]) -> list[float]:
    """Calls `run` for all devices at once, in threads; returns their results."""
    found = [0.0] * devices

    def one(device: int) -> None:
        found[device] = run(device)

    threads = [threading.Thread(target=one, args=(device,)) for device in range(devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if min(found) < 0:
        raise SystemExit("the plain kernel has failed")
    return found


def _copies(bench: Bench, address: int, devices: int, plain: ctypes.CDLL) -> None:
    size = min(1 << 28, bench.table.shape[0] * bench.row_bytes)
    milliseconds = _on_all(devices, lambda d: plain.plain_copy(d, address, size, 20))
    rows = size // bench.row_bytes
    bench.note("a copy of as many bytes", rows, devices, max(milliseconds) / 1e3)


def _plain(bench: Bench, address: int, ids: np.ndarray, plain: ctypes.CDLL) -> None:
    sets, devices, count = ids.shape
    out = np.empty((count, bench.columns), np.uint32)
    repeats = 2 * sets + 1
    arguments = sets, count, bench.row_bytes, repeats

    def run(device: int) -> float:
        own = np.ascontiguousarray(ids[:, device])
        copy = out.ctypes.data if device == 0 else None
        return plain.plain_gather(device, address, own.ctypes.data, *arguments, copy)

    milliseconds = _on_all(devices, run)
    last = ids[repeats % sets, 0]
    if not (out == _values(last.astype(np.uint32), bench.columns, np)).all():
        raise SystemExit("the plain kernel has gathered wrong rows")
    bench.note("a plain kernel", count, devices, max(milliseconds) / 1e3)


def _host(bench: Bench, sets: np.ndarray, sharding: Any, devices: int) -> None:
    turn = iter(range(1 << 30))

    def run() -> None:
        ids = sets[next(turn) % len(sets)]
        jax.block_until_ready(jax.device_put(np.take(bench.rows, ids, axis=0), sharding))

    count = sets.shape[1] // devices
    seconds = _seconds(run, max(1, min(bench.repeats, (1 << 30) // (count * bench.row_bytes))))
    bench.note("np.take and device_put", count, devices, seconds)


def _compile(folder: str) -> ctypes.CDLL:
    library = f"{folder}/libplain_gather.so"
    command = ["nvcc", "-O3", "-shared", "-Xcompiler=-fPIC", str(_PLAIN), "-o", library]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(library)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    loaded.plain_gather.argtypes = [
        ctypes.c_int,
        pointer,
        pointer,
        size,
        size,
        size,
        ctypes.c_int,
        pointer,
    ]
    loaded.plain_copy.argtypes = [ctypes.c_int, pointer, size, ctypes.c_int]
    loaded.plain_gather.restype = loaded.plain_copy.restype = ctypes.c_double
    return loaded


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=8, help="size of the table (default: 8)")
    parser.add_argument("--row-bytes", type=_numbers, default=[256, 1024, 4096])
    parser.add_argument("--ids", type=_numbers, default=[1024, 16384, 131072, 1048576])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", default="/dev/shm", help="where the store is made")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    gpu = jax.default_backend() != "cpu"
    size = int(options.gib * (1 << 30))
    found = []
    with tempfile.TemporaryDirectory(prefix="jax_cxl_gather.", dir=options.folder) as folder:
        plain = _compile(folder) if gpu else None
        store = jax_cxl.Store(f"file:{folder}/store?size={size + (64 << 20)}")
        for row_bytes in options.row_bytes:
            rows, columns = size // row_bytes, row_bytes // 4
            start = time.perf_counter()
            table = jax_cxl.Table.create(
                store, _NAME, _blocks(rows, columns), shape=(rows, columns), dtype=np.uint32
            )
            print(f"made a table of {rows} rows in {time.perf_counter() - start:.1f} s")
            with store.view(_NAME) as view:
                bench = Bench(table, view.tree["rows"], options.repeats)
            if plain is not None:
                on_gpus(bench, store, options.ids, plain)
            else:
                on_cpu(bench, options.ids)
            found += bench.results
            del bench, view
            table.close()
            gc.collect()
            store.delete(_NAME)
    if options.json:
        results_file.write(
            pathlib.Path(options.json),
            {
                "command": results_file.command_line("gather.py", sys.argv[1:]),
                "device": jax.local_devices()[0].device_kind,
                "cores": os.cpu_count(),
                "jax": jax.__version__,
                "table_gib": options.gib,
                "results": found,
            },
        )


if __name__ == "__main__":
    main()
