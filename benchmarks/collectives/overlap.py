"""Measures how well a collective on CPUs and a computation overlap.

    python -m jax_cxl.launch -n 2 --devices-per-process 1
        benchmarks/collectives/overlap.py --json overlap.json

One jitted program starts a collective of 64 MiB, multiplies matrices and waits for the collective.
The script also times the collective alone and the products alone, in turn with this program. The
products take as long as the collective, which is the hardest case to overlap.

A collective needs a core for its copies, and the products need another one. By default rank 0
multiplies in one thread on the first core. The threads that copy, of all ranks, share the second
core. The collective alone is measured on the same cores. With --everywhere all ranks multiply and
use all cores. With two ranks on two cores, no core is then free for the copies. So the program
takes at best as long as the collective alone plus the products alone.
"""

import argparse
import functools
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

# One thread: products in several threads would use the core that is reserved for collectives.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
).strip()

import jax
import jax.numpy as jnp
import numpy as np

import jax_cxl
from jax_cxl._commands.measuring import measure, report, results_file
from jax_cxl._commands.measuring.world import World

_ELEMENTS = (64 << 20) // 4
_MATRIX = 128  # The matrices stay in a core's own cache.
# If a program has at most eight thunks (XLA's units of execution), XLA executes them one after
# another, and waits for each. Nothing could then overlap, so this program has more thunks.
_LOOPS = 16
_OPS = {
    "psum": functools.partial(jax_cxl.start, jax_cxl.psum),
    "ppermute": lambda x, axis: jax_cxl.start(jax_cxl.ppermute, x, axis, [(0, 1), (1, 0)]),
}
_ENDPOINT_THREAD = "jax_cxl"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--everywhere", action="store_true", help="all ranks multiply")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    cores = sorted(os.sched_getaffinity(0))
    jax_cxl.initialize()
    world = World(jax.process_index(), jax.process_count())
    if not options.everywhere:
        _pin(world, cores)
    multiplies = options.everywhere or world.rank == 0
    rows = [_measure(world, name, options.repeats, multiplies) for name in _OPS]
    if world.rank == 0 and options.json:
        command = results_file.command_line("benchmarks/collectives/overlap.py", sys.argv[1:])
        results_file.write(options.json, report.header(load, command) | {"results": rows})


def _pin(world: World, cores: list[int]) -> None:
    """Binds the threads that copy to the second core, and rank 0's other threads to the first."""
    for task in pathlib.Path("/proc/self/task").iterdir():
        moves = world.rank > 0 or (task / "comm").read_text().strip() == _ENDPOINT_THREAD
        os.sched_setaffinity(int(task.name), {cores[1] if moves else cores[0]})


class Case:
    """A collective of 64 MiB and a chain of matrix products, together and alone.

    The programs return their results in donated memory, because the first use of fresh memory would
    cost more than the collective or the products.
    """

    def __init__(self, world: World, start: Callable[[Any, str], jax_cxl.Future]):
        self._world = world
        self._mesh = jax_cxl.make_mesh(
            (world.size,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
        )
        ones = np.ones(_ELEMENTS, np.float32)
        self._x, self._y = self._place(ones), self._place(ones)
        self._a = self._place(np.eye(_MATRIX, dtype=np.float32))
        self._both = self._jit(lambda x, y, a, n: (start(x, "i"), _multiply(a, n)))
        self._compute = self._jit(lambda x, y, a, n: (y, _multiply(a, n)))

    def _place(self, local: np.ndarray) -> Any:
        sharding = jax.NamedSharding(self._mesh, jax.P("i"))
        whole = (self._world.size * len(local), *local.shape[1:])
        array = jax.make_array_from_process_local_data(sharding, local, whole)
        return jax.jit(jnp.copy)(array).block_until_ready()

    def _jit(self, body: Callable) -> Callable:
        def finished(*arguments):
            y, a = body(*arguments)
            return (y.done() if isinstance(y, jax_cxl.Future) else y), a

        spec = jax.P("i")
        mapped = jax.shard_map(
            finished, mesh=self._mesh, in_specs=spec, out_specs=spec, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=(1, 2), keep_unused=True)

    def seconds(self, collective: bool, products: int) -> float:
        """Runs a program, with the collective or without; returns the time of the slowest rank.

        Args:
          collective: whether the program contains the collective.
          products: how many products this rank computes in each of its loops.
        """
        count = self._place(np.array([products], np.int32))
        program = self._both if collective else self._compute
        self._world.barrier()
        start = time.perf_counter()
        self._y, self._a = jax.block_until_ready(program(self._x, self._y, self._a, count))
        return max(self._world.gather(time.perf_counter() - start))


def _multiply(a: Any, count: Any) -> Any:
    for _ in range(_LOOPS):
        a = jax.lax.fori_loop(0, count[0], lambda _, a: jnp.tanh(a @ a), a)
    return a


def _measure(world: World, name: str, repeats: int, multiplies: bool) -> dict:
    """Returns the times of the collective `name`, of products and of both, in milliseconds."""
    case = Case(world, _OPS[name])
    for collective in (True, False):
        case.seconds(collective, 1)
    # Find the number of products that take as long as the collective.
    target = statistics.median(case.seconds(True, 0) for _ in range(5))
    count = 20
    for _ in range(3):
        took = case.seconds(False, count if multiplies else 0)
        count = max(1, round(count * target / took))
    products = count if multiplies else 0
    kinds = {"collective": (True, 0), "products": (False, products), "both": (True, products)}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind, arguments in kinds.items():
            times[kind].append(case.seconds(*arguments) * 1e3)
    medians = {kind: statistics.median(of) for kind, of in times.items()}
    longer = max(medians["collective"], medians["products"])
    if world.rank == 0:
        parts = ", ".join(f"{kind} {medians[kind]:.1f} ms" for kind in kinds)
        print(f"{name}: {parts}; both / longer {medians['both'] / longer:.2f}", flush=True)
    return {"op": name, "bytes": 4 * _ELEMENTS, "ranks": world.size} | {
        f"{kind}_ms": measure.spread(of) for kind, of in times.items()
    }


if __name__ == "__main__":
    main()
