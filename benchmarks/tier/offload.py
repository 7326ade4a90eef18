"""Measures training steps whose optimizer state is on the device, in pinned_host, or in a pool.

    python benchmarks/tier/offload.py --millions=340 --limit-gib=16

Each way runs in a process of its own, with the memory that `--limit-gib` allows of each GPU
(XLA_PYTHON_CLIENT_MEM_FRACTION). All ways compute the gradients by the same program. So their
losses are equal to the last bit if their updates of the parameters are. Rows of JSON have the
median time of a step, and the peak of the device's memory. `--largest` finds, for each way, the
largest model that it can train. On CPUs the program runs with small models, to try it out.

* device: the state stays on the device.
* pinned: the state is in `pinned_host`; the compiled update brings it to the device and back.
* pooled: `jax_cxl.pooled`.
"""

import argparse
import functools
import json
import pathlib
import sys
import tempfile
import time
from typing import Any

import alone

_WAYS = ("device", "pinned", "pooled")


def main() -> int:
    """Runs each way; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--millions", type=float, default=1.0, help="parameters (default: 1)")
    parser.add_argument(
        "--width", type=int, default=0, help="of a layer; by default 2048, CPUs 256"
    )
    parser.add_argument(
        "--tokens", type=int, default=0, help="in a batch; by default 8192, CPUs 64"
    )
    parser.add_argument("--group-mib", type=int, default=128, help="group_bytes (default: 128)")
    parser.add_argument("--largest", action="store_true", help="find the largest model")
    alone.add_options(parser, _WAYS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_measure(options)), flush=True)
        return 0
    end = time.monotonic() + options.seconds
    found: dict[str, Any] = {}
    for way in options.ways.split(","):
        if options.largest:
            found[way] = _find_largest(options, way, end)
        elif time.monotonic() < end:
            found[way] = _run(options, way, options.millions, end)
        print(json.dumps({"way": way} | found.get(way, {"left out": "no time"})), flush=True)
    losses = {tuple(row["losses"]) for row in found.values() if "losses" in row}
    if len(losses) > 1:
        print(json.dumps({"losses": "differ"}), flush=True)
    return int(len(losses) > 1)


def _find_largest(options: argparse.Namespace, way: str, end: float) -> dict[str, Any]:
    """Grows the model by a fifth at a time until training fails; returns the last good row."""
    largest: dict[str, Any] = {}
    millions = options.millions
    while time.monotonic() < end:
        row = _run(options, way, millions, end)
        print(json.dumps({"way": way, "millions": round(millions)} | row), flush=True)
        if "failed" in row:
            return largest | {"does not train with millions": round(millions), "why": row["failed"]}
        largest = row
        millions *= 1.2
    return largest | {"stopped": "no time"}


def _run(options: argparse.Namespace, way: str, millions: float, end: float) -> dict[str, Any]:
    return alone.run(__file__, options, (f"--one={way}", f"--millions={millions}"), end)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """Trains in the way `--one`; returns a row."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    device = jax.devices()[0]
    on_gpu = device.platform != "cpu"
    width = options.width or (2048 if on_gpu else 256)
    tokens = options.tokens or (8192 if on_gpu else 64)
    layers = max(1, round(options.millions * 1e6 / (2 * width * width)))
    mesh = jax.make_mesh((jax.device_count(),), ("x",), (jax.sharding.AxisType.Auto,))
    everywhere, rows = (jax.NamedSharding(mesh, spec) for spec in (jax.P(), jax.P("x")))
    optimizer = optax.adamw(1e-4)

    @functools.partial(jax.jit, out_shardings=everywhere)
    def matrix(key: Any) -> Any:
        return jax.random.normal(key, (width, width)) * width**-0.5

    def loss(params: Any, x: Any) -> Any:
        y = x
        for layer in params:
            block = jax.checkpoint(lambda y, w: y + jax.nn.gelu(y @ w["in"]) @ w["out"])
            y = block(y, layer)
        return jnp.mean((jnp.tanh(y) - x) ** 2)

    gradients = jax.jit(jax.value_and_grad(loss))
    x = jax.device_put(np.random.default_rng(0).normal(size=(tokens, width)).astype("f4"), rows)
    keys = jax.random.split(jax.random.key(0), (layers, 2))
    params = [{"in": matrix(a), "out": matrix(b)} for a, b in keys]
    parameters = sum(p.size for p in jax.tree.leaves(params))

    def zero(leaf: Any) -> Any:
        divisible = leaf.shape and leaf.shape[0] % jax.device_count() == 0
        return rows if divisible else everywhere

    with tempfile.TemporaryDirectory(prefix="jax_cxl_tier.", dir=options.folder) as folder:
        start, step, finish = _ways(options, optimizer, zero, folder, parameters)[options.one]
        state = start(params)
        losses, times = [], []
        for number in range(options.steps + 3):
            began = time.monotonic()
            value, grads = gradients(params, x)
            params, state = step(params, grads, state)
            del grads
            losses.append(np.asarray(value).tobytes().hex())
            jax.block_until_ready(params)
            if number >= 3:
                times.append(time.monotonic() - began)
        finish()
        row = {
            "device": device.device_kind,
            "devices": jax.device_count(),
            "limit, GiB": options.limit_gib,
            "parameters, millions": round(parameters / 1e6, 1),
            "step, ms": round(1e3 * float(np.median(times)), 2),
            "range, ms": [round(1e3 * t, 2) for t in (min(times), max(times))],
            "losses": losses[:5],
        }
        stats = device.memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            row["peak, GiB"] = round(stats["peak_bytes_in_use"] / 2**30, 2)
        # Measure the gradients and the update of a step separately.
        parts = []
        for _ in range(3):
            began = time.monotonic()
            value, grads = jax.block_until_ready(gradients(params, x))
            parts.append(time.monotonic() - began)
            began = time.monotonic()
            params, state = step(params, grads, state)
            jax.block_until_ready(params)
            finish()
            parts.append(time.monotonic() - began)
        row["gradients, ms"] = round(1e3 * float(np.median(parts[::2])), 2)
        row["update alone, ms"] = round(1e3 * float(np.median(parts[1::2])), 2)
        exposed = np.median(times) - np.median(parts[::2])
        row["update hidden"] = round(1 - float(exposed / np.median(parts[1::2])), 3)
        if options.one == "pooled":
            row["read and written, GB/s"] = [
                round(bytes_of * parameters / jax.device_count() / np.median(parts[1::2]) / 1e9, 1)
                for bytes_of in (8, 12)
            ]
    return row


def _ways(
    options: argparse.Namespace, optimizer: Any, zero: Any, folder: str, parameters: int
) -> dict[str, Any]:
    """Returns three functions for each way of keeping the optimizer's state.

    The first makes the state of the optimizer, the second makes a step, and the third waits until
    the step has ended.
    """
    import jax
    import optax

    import jax_cxl

    def update(params: Any, grads: Any, state: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    placed = lambda state, kind: jax.tree.map(  # noqa: E731
        lambda x: zero(x).with_memory_kind(kind), state
    )

    def start(params: Any, kind: str) -> Any:
        like = jax.eval_shape(optimizer.init, params)
        return jax.jit(optimizer.init, out_shardings=placed(like, kind))(params)

    compiled: list[Any] = []

    def plain(params: Any, grads: Any, state: Any) -> Any:
        if not compiled:
            shardings = jax.tree.map(lambda x: x.sharding, (params, state))
            compiled.append(jax.jit(update, donate_argnums=(0, 1, 2), out_shardings=shardings))
        return compiled[0](params, grads, state)

    def pinned(params: Any, grads: Any, state: Any) -> Any:
        if not compiled:
            shardings = jax.tree.map(lambda x: x.sharding, (params, state))
            on_device = placed(state, "device")

            def moved(params: Any, grads: Any, state: Any) -> Any:
                return update(params, grads, jax.device_put(state, on_device))

            compiled.append(jax.jit(moved, donate_argnums=(0, 1), out_shardings=shardings))
        return compiled[0](params, grads, state)

    if options.one == "pooled":
        size = 3 * 12 * parameters + (256 << 20) + 3 * 16 * (1 << 20) * jax.process_count()
        store = jax_cxl.Store(f"file:{pathlib.Path(folder) / 'pool'}?size={size}")
        pooled = jax_cxl.pooled(
            optimizer,
            store,
            "adamw",
            sharding=zero if jax.device_count() > 1 else None,
            group_bytes=options.group_mib << 20,
        )
        return {"pooled": (pooled.init, pooled.step, pooled.wait)}
    return {
        "device": (lambda params: start(params, "device"), plain, lambda: None),
        "pinned": (lambda params: start(params, "pinned_host"), pinned, lambda: None),
    }


if __name__ == "__main__":
    sys.exit(main())
