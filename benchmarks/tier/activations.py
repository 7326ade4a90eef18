"""Measures training steps whose activations are kept, computed again, or offloaded.

    python benchmarks/tier/activations.py --layers=24 --width=2048 --tokens=8192 --limit-gib=16

The model is a transformer whose layers are a `jax.lax.scan`. There are five ways, listed below, and
each runs in a process of its own. `kept`, `pinned` and `pooled` keep the same two values of each
layer: its input and the output of its attention. The losses and gradients of `pinned` and `pooled`
are equal to the last bit. On CPUs those of `kept` are equal to these too. On GPUs they are not,
because XLA fuses operations differently if the values stay on the device. Rows of JSON have the
median time of a step and the memory that it takes. On CPUs the program runs with small models, to
try it out.

* neither: all residuals stay on the device.
* remat: only the input of each layer stays.
* kept: only the two values stay.
* pinned: XLA offloads the two values to `pinned_host`. GPUs only.
* pooled: `jax_cxl.offload_residuals` offloads the two values to a pool.
"""

import argparse
import functools
import hashlib
import json
import pathlib
import sys
import tempfile
import time
from typing import Any

import alone

_WAYS = ("neither", "remat", "kept", "pinned", "pooled")
_NAMES = ("input", "attention")


def main() -> int:
    """Runs each way; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12, help="default: 12")
    parser.add_argument("--width", type=int, default=0, help="by default 2048, CPUs 128")
    parser.add_argument(
        "--tokens", type=int, default=0, help="in a batch; by default 8192, CPUs 256"
    )
    alone.add_options(parser, _WAYS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_measure(options)), flush=True)
        return 0
    end = time.monotonic() + options.seconds
    digests = set()
    for way in options.ways.split(","):
        row: dict[str, Any] = {"left out": "no time"}
        if time.monotonic() < end:
            row = alone.run(__file__, options, (f"--one={way}",), end)
        print(json.dumps({"way": way} | row), flush=True)
        same_bits = ("pinned", "pooled") if row.get("device") != "cpu" else ("kept", "pooled")
        if way in same_bits and "digest" in row:
            digests.add(row["digest"])
    if len(digests) > 1:
        print(json.dumps({"losses and gradients": "differ"}), flush=True)
    return int(len(digests) > 1)


def _layer(x: Any, w: Any) -> tuple[Any, None]:
    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name

    x = checkpoint_name(x, "input")
    heads = w["qkv"].shape[0] // 128 or 1
    q, k, v = jnp.split(_normal(x) @ w["qkv"], 3, axis=-1)
    split = lambda y: y.reshape(*y.shape[:2], heads, -1)  # noqa: E731
    attention = jax.nn.dot_product_attention(split(q), split(k), split(v), is_causal=True)
    attention = checkpoint_name(attention.reshape(x.shape), "attention")
    x = x + attention @ w["out"]
    return x + jax.nn.gelu(_normal(x) @ w["up"]) @ w["down"], None


def _normal(x: Any) -> Any:
    import jax.numpy as jnp

    return x * (jnp.mean(x.astype("f4") ** 2, -1, keepdims=True) + 1e-6).astype(x.dtype) ** -0.5


def _body(options: argparse.Namespace, way: str, folder: str, value_bytes: int) -> Any:
    """Returns the function of one layer, which is the body of the scan, for the way `way`."""
    import jax

    import jax_cxl

    checkpoint = functools.partial(jax.checkpoint, _layer, prevent_cse=False)
    policies = jax.checkpoint_policies
    if way == "neither":
        return _layer
    if way == "remat":
        return checkpoint()
    if way == "kept":
        return checkpoint(policy=policies.save_only_these_names(*_NAMES))
    if way == "pinned":
        policy = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=list(_NAMES),
            offload_src="device",
            offload_dst="pinned_host",
        )
        return checkpoint(policy=policy)
    size = options.layers * len(_NAMES) * value_bytes + (16 << 20)
    store = jax_cxl.Store(f"file:{pathlib.Path(folder) / 'pool'}?size={size}")
    return jax_cxl.offload_residuals(
        _layer, store, names=_NAMES, calls=options.layers, prevent_cse=False
    )


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """Trains in one way, on each device independently of the others; returns a row."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    devices = jax.local_devices()
    on_gpu = devices[0].platform != "cpu"
    width = options.width or (2048 if on_gpu else 128)
    tokens = options.tokens or (8192 if on_gpu else 256)
    sequence = min(tokens, 2048)
    dtype = jnp.bfloat16 if on_gpu else jnp.float32
    mesh = jax.make_mesh((len(devices),), ("x",), (jax.sharding.AxisType.Auto,))
    shapes = {"qkv": (width, 3 * width), "out": (width, width)}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    rng = np.random.default_rng(0)
    weights = {
        name: jax.device_put(
            (rng.normal(size=(options.layers, *shape)) * shape[0] ** -0.5).astype(dtype),
            jax.NamedSharding(mesh, jax.P()),
        )
        for name, shape in shapes.items()
    }
    shape = (tokens // sequence * len(devices), sequence, width)
    x = jax.device_put(rng.normal(size=shape).astype(dtype), jax.NamedSharding(mesh, jax.P("x")))
    with tempfile.TemporaryDirectory(prefix="jax_cxl_tier.", dir=options.folder) as folder:
        body = _body(options, options.one, folder, x.nbytes)

        def loss(weights: Any, x: Any) -> Any:
            y, _ = jax.lax.scan(body, x, weights)
            return jnp.mean(y.astype("f4") ** 2)

        def step(weights: Any, x: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(weights, x)
            updated = jax.tree.map(
                lambda w, g: w - 1e-3 * jax.lax.pmean(g, "x"), weights, gradients
            )
            return jax.lax.pmean(value, "x"), updated

        specs = (jax.P(), jax.P("x"))
        mapped = jax.shard_map(
            step, mesh=mesh, in_specs=specs, out_specs=(jax.P(), jax.P()), check_vma=False
        )
        compiled = jax.jit(mapped, donate_argnums=0).lower(weights, x).compile()
        losses, times = [], []
        for number in range(options.steps + 3):
            began = time.monotonic()
            value, weights = jax.block_until_ready(compiled(weights, x))
            losses.append(np.asarray(value).tobytes().hex())
            if number >= 3:
                times.append(time.monotonic() - began)
        digest = hashlib.sha256(json.dumps(losses).encode())
        for leaf in jax.tree.leaves(weights):
            digest.update(np.asarray(leaf).tobytes())
        row = {
            "device": devices[0].device_kind,
            "devices": len(devices),
            "layers": options.layers,
            "width": width,
            "tokens of a device": tokens,
            "limit, GiB": options.limit_gib,
            "step, ms": round(1e3 * float(np.median(times)), 2),
            "range, ms": [round(1e3 * t, 2) for t in (min(times), max(times))],
            "values of a step, MiB": round(
                options.layers * len(_NAMES) * x.nbytes / len(devices) / 2**20, 1
            ),
            "digest": digest.hexdigest()[:16],
        }
        if (analysis := compiled.memory_analysis()) is not None:
            row["temporary memory, MiB"] = round(analysis.temp_size_in_bytes / 2**20, 1)
        stats = devices[0].memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            row["peak, GiB"] = round(stats["peak_bytes_in_use"] / 2**30, 2)
    return row


if __name__ == "__main__":
    sys.exit(main())
