"""Measures what a rank costs: threads, memory, first calls, and processor time while it is idle.

    python -m jax_cxl.launch -n 2 benchmarks/costs.py

Process 0 prints what it uses itself. Processor time (cpu) is that of all its threads, which a busy
machine changes less than it changes times. `--seconds` is how long each idle phase lasts.
"""

import argparse
import os
import pathlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_CALLS = 500
_LATE_S = 5  # by how much process 1 comes late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="of an idle phase (default: 60)")
    seconds = parser.parse_args().seconds
    jax.distributed.initialize()
    devices = jax.devices()
    _idle("JAX alone", seconds)

    before = _Usage()
    import jax_cxl

    jax_cxl.initialize()
    before.report("import jax_cxl, initialize")
    _idle("after initialize", seconds)
    for name, psum, ranks in (
        ("jax_cxl.psum", jax_cxl.psum, devices),
        ("jax_cxl.psum, again", jax_cxl.psum, devices),
        ("jax_cxl.psum, another group", jax_cxl.psum, devices[::-1]),
        ("jax.lax.psum", jax.lax.psum, devices),
        ("jax.lax.psum, again", jax.lax.psum, devices),
    ):
        _sum(name, psum, ranks)
    _idle("after calls", seconds)
    _wait(jax_cxl.psum, devices)
    # All ranks have the same launcher, so they name the same file.
    file = pathlib.Path(tempfile.gettempdir()) / f"costs.{os.getppid()}"
    with jax_cxl.Store(f"file:{file}?size=64MiB") as store:
        store.publish("x", {"x": np.zeros(1000)})
        _idle("with a store", seconds)
    jax_cxl.barrier(name="costs")
    if jax.process_index() == 0:
        file.unlink()


class _Usage:
    """What the process uses now, to compare with later."""

    def __init__(self) -> None:
        self._now = self._read()

    def report(self, name: str) -> None:
        """Prints what the process uses more than at the beginning of this object."""
        more = {key: value - self._now[key] for key, value in self._read().items()}
        _say(name, ", ".join(f"{value:.4g} {key}" for key, value in more.items()))

    def _read(self) -> dict[str, float]:
        status = pathlib.Path("/proc/self/status").read_text()
        fields = dict(re.findall(r"(\w+):\s*(\d+)", status))
        return {
            "threads": int(fields["Threads"]),
            "MiB private": int(fields["RssAnon"]) / 1024,
            "MiB shared": int(fields["RssShmem"]) / 1024,
            "ms cpu": 1e3 * time.process_time(),
            "ms": 1e3 * time.perf_counter(),
        }


def _say(name: str, text: str) -> None:
    if jax.process_index() == 0:
        print(f"{name}: {text}", flush=True)


def _idle(name: str, seconds: float) -> None:
    begun = time.process_time()
    time.sleep(seconds)
    spent = time.process_time() - begun
    _say(f"idle, {name}", f"{1e3 * spent / seconds:.2f} ms cpu a second")


def _program(psum: Callable[..., jax.Array], ranks: Sequence[Any]) -> Any:
    mesh = jax.sharding.Mesh(ranks, ("i",))
    each = jax.shard_map(lambda x: psum(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
    x = jax.jit(
        lambda: jnp.ones(1024 * len(ranks)), out_shardings=jax.NamedSharding(mesh, jax.P("i"))
    )()
    return each, x


def _sum(name: str, psum: Callable[..., jax.Array], ranks: Sequence[Any]) -> None:
    each, x = _program(psum, ranks)
    usage = _Usage()
    compiled = jax.jit(each).lower(x).compile()
    usage.report(f"{name}: compile")
    usage = _Usage()
    compiled(x).block_until_ready()
    usage.report(f"{name}: first call")
    times = []
    for _ in range(_CALLS):
        begun = time.perf_counter()
        compiled(x).block_until_ready()
        times.append(time.perf_counter() - begun)
    _say(f"{name}: later calls", f"{1e6 * statistics.median(times):.0f} us in the median")


def _wait(psum: Callable[..., jax.Array], ranks: Sequence[Any]) -> None:
    each, x = _program(psum, ranks)
    compiled = jax.jit(each).lower(x).compile()
    compiled(x).block_until_ready()
    if jax.process_index() == 1:
        time.sleep(_LATE_S)
    usage = _Usage()
    compiled(x).block_until_ready()
    usage.report("wait for a late rank")


if __name__ == "__main__":
    main()
