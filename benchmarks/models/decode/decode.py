"""Times a tensor-parallel decoder, whose sums run in one way after the other.

    NCCL_P2P_DISABLE=1 python -m jax_cxl.launch -n 2 benchmarks/models/decode/decode.py \\
        --width=1024 --layers=24 --ways=none,lax,cxl,takeover,plain --plain=libplain_sum.so

One process for each GPU. All ways are compiled first, and then take turns. The ways:

    none      no sums: the results are wrong, and the time is that of everything else
    lax       jax.lax.psum under shard_map: XLA calls NCCL (with the launcher's --nccl: the pool)
    cxl       jax_cxl.psum under shard_map
    jit       jax.jit alone: XLA's partitioner makes the sums
    takeover  the same under jax_cxl.replace_collectives
    plain     a custom call (plain_sum.cu) that calls ncclAllReduce of NVIDIA's library
    plain_cxl the same custom call with jax_cxl's libnccl (needs JAX_CXL_NCCL_HOSTS=all)
    nothing   a custom call that does nothing; the results are wrong
    kernel    a custom call that launches a kernel that does nothing; the results are wrong

`decode` computes one token after the other, with a cache; `prefill` computes many tokens at once.
Prints one JSON object: for each way the us of a step (median, least and most of the turns), the us
until the host has enqueued it, and what a sum costs. With `plain`, also the host's us in the call.
"""

import argparse
import contextlib
import ctypes
import functools
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

_HEAD = 64
_VOCABULARY = 4096
_BF16 = jnp.bfloat16


def _norm(x):
    y = x.astype(jnp.float32)
    y = (y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return y.astype(_BF16)


def _decode(psum, weights, embedding, cache, tokens, position):
    """One step: int32[batch] tokens; for each layer two bf16[length, batch, heads, 64] of cache."""
    x, kept = embedding[tokens], []
    for w, (keys, values) in zip(weights, cache, strict=True):
        h = _norm(x)
        q, k, v = ((h @ w[c]).reshape(x.shape[0], -1, _HEAD) for c in "qkv")
        keys = jax.lax.dynamic_update_slice(keys, k[None], (position, 0, 0, 0))
        values = jax.lax.dynamic_update_slice(values, v[None], (position, 0, 0, 0))
        scores = jnp.einsum("bhd,tbhd->bht", q, keys, preferred_element_type=jnp.float32) / 8
        scores = jnp.where(jnp.arange(keys.shape[0]) <= position, scores, -1e9)
        mixed = jnp.einsum("bht,tbhd->bhd", jax.nn.softmax(scores).astype(_BF16), values)
        x = x + psum(mixed.reshape(x.shape[0], -1) @ w["o"])
        x = x + psum(jax.nn.gelu(_norm(x) @ w["u"]) @ w["d"])
        kept.append((keys, values))
    logits = (_norm(x) @ embedding.T).astype(jnp.float32)
    return jnp.argmax(logits, -1).astype(jnp.int32), kept


def _prefill(psum, weights, embedding, cache, tokens, position):
    """One pass over int32[length] tokens, without a cache."""
    del position
    x = embedding[tokens]
    for w in weights:
        h = _norm(x)
        q, k, v = ((h @ w[c]).reshape(1, x.shape[0], -1, _HEAD) for c in "qkv")
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)[0]
        x = x + psum(mixed.reshape(x.shape[0], -1) @ w["o"])
        x = x + psum(jax.nn.gelu(_norm(x) @ w["u"]) @ w["d"])
    logits = (_norm(x) @ embedding.T).astype(jnp.float32)
    return jnp.argmax(logits, -1).astype(jnp.int32), cache


def _itself(x):
    return x


class _Plain:
    """The custom call of plain_sum.cu."""

    def __init__(self, path, number):
        self._c = ctypes.CDLL(path)
        self._number = number
        jax.ffi.register_ffi_target(
            "plain_sum", jax.ffi.pycapsule(self._c.PlainSum), platform="CUDA"
        )

    def open(self, library, ranks, rank):
        """Lets the call use this libnccl."""
        from jax._src import distributed

        number = self._number
        self._check(self._c.plain_sum_load(number, library.encode()))

        client, uid = distributed.global_state.client, ctypes.create_string_buffer(128)
        if rank == 0:
            self._check(self._c.plain_sum_unique_id(number, uid))
            client.key_value_set(f"plain_sum/{number}", uid.raw.hex())
        uid = bytes.fromhex(client.blocking_key_value_get(f"plain_sum/{number}", 20000))
        jnp.zeros(1).block_until_ready()
        self._check(self._c.plain_sum_open(number, uid, ranks, rank))

    def _check(self, status):
        if status != 0:
            raise RuntimeError(f"libnccl {self._number}: status {status}")

    def psum(self, x):
        """Makes the call."""
        call = jax.ffi.ffi_call("plain_sum", jax.ShapeDtypeStruct(x.shape, x.dtype))
        return call(x, number=np.int64(self._number))

    def times(self):
        """Returns the host's us in each call since the last time."""
        out = (ctypes.c_float * 1000000)()
        return np.array(out[: self._c.plain_sum_times(self._number, out, len(out))])


def _summary(values):
    return {"median": round(float(np.median(values)), 2)} | {
        "least": round(float(min(values)), 2),
        "most": round(float(max(values)), 2),
    }


def main() -> None:
    """Runs all ways in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=["decode", "prefill"], default="decode")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--batch", type=int, default=1, help="of decode")
    parser.add_argument("--tokens", type=int, default=2048, help="of prefill")
    parser.add_argument("--length", type=int, default=256, help="of decode's cache")
    parser.add_argument("--steps", type=int, default=40, help="of one turn")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--ways", default="none,lax,cxl,jit,takeover")
    parser.add_argument("--plain", help="libplain_sum.so")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
    options = parser.parse_args()
    ways = options.ways.split(",")

    jax.distributed.initialize()
    n, rank = jax.device_count(), jax.process_index()
    mesh = jax.sharding.Mesh(
        np.asarray(jax.devices()), ("x",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    random = np.random.RandomState(0)

    def put(value, spec):
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(value.shape, sharding, lambda i: value[i])

    def matrix(rows, columns, spec):
        return put((random.randn(rows, columns) * rows**-0.5).astype(_BF16), spec)

    width, columns, rows = options.width, P(None, "x"), P("x", None)
    shapes = dict.fromkeys("qkv", (width, width, columns))
    shapes |= {"o": (width, width, rows), "u": (width, 4 * width, columns)}
    shapes |= {"d": (4 * width, width, rows)}
    # All layers have the same values, in memory of their own.
    values = {
        name: (random.randn(a, b) * a**-0.5).astype(_BF16) for name, (a, b, _) in shapes.items()
    }
    weights = [
        {k: put(values[k], s) for k, (_, _, s) in shapes.items()} for _ in range(options.layers)
    ]
    embedding = matrix(_VOCABULARY, width, P())
    weight_specs = [{k: s for k, (_, _, s) in shapes.items()}] * options.layers
    decodes = options.kind == "decode"
    cache_spec = P(None, None, "x", None)
    cache_shape = (options.length, options.batch, width // _HEAD, _HEAD)
    cache_specs = [(cache_spec, cache_spec)] * (options.layers if decodes else 0)
    step = _decode if decodes else _prefill
    count = options.batch if decodes else options.tokens
    positions = [put(np.int32(i % options.length), P()) for i in range(options.steps + 16)]

    plain = {}
    if options.plain:
        from jax_cxl._nccl import library

        for number, way in enumerate(["plain", "plain_cxl", "nothing", "kernel"]):
            if way not in ways:
                continue
            plain[way] = _Plain(options.plain, number)
            if way.startswith("plain"):
                path = library.real_path() if way == "plain" else library.path()
                plain[way].open(str(path), n, rank)

    def compiled(way):
        if way in ("jit", "takeover"):
            sharded = functools.partial(jax.tree.map, lambda s: NamedSharding(mesh, s))
            specs = (weight_specs, P(), cache_specs, P(), P())
            body = functools.partial(step, _itself)
            return jax.jit(
                lambda *arguments: body(*arguments),
                in_shardings=sharded(specs),
                out_shardings=sharded((P(), cache_specs)),
                donate_argnums=(2,),
            )
        if way == "lax":
            psum = functools.partial(jax.lax.psum, axis_name="x")
        elif way == "cxl":
            import jax_cxl

            psum = functools.partial(jax_cxl.psum, axis_name="x")
        elif way in plain:
            psum = plain[way].psum
        else:
            psum = _itself
        return jax.jit(
            jax.shard_map(
                functools.partial(step, psum),
                mesh=mesh,
                in_specs=(weight_specs, P(), cache_specs, P(), P()),
                out_specs=(P(), cache_specs),
                check_vma=False,
            ),
            donate_argnums=(2,),
        )

    programs, states, tokens = {}, {}, {}
    for way in ways:
        programs[way] = compiled(way)
        cache = [
            tuple(put(np.zeros(cache_shape, _BF16), cache_spec) for _ in range(2))
            for _ in cache_specs
        ]
        states[way] = [put(np.full(count, 1, np.int32), P()), cache]

    def run(way, steps, first):
        got = []
        for i in range(steps):
            out, states[way][1] = programs[way](
                weights, embedding, states[way][1], states[way][0], positions[first + i]
            )
            if decodes:
                states[way][0] = out
            got.append(out)
        return got

    for way in ways:
        replaces = contextlib.nullcontext()
        if way == "takeover":
            import jax_cxl

            replaces = jax_cxl.replace_collectives(strict=True)
        with replaces:
            programs[way] = (
                programs[way]
                .lower(weights, embedding, states[way][1], states[way][0], positions[0])
                .compile()
            )
        got = run(way, 9, 0)
        tokens[way] = [int(np.asarray(t.addressable_data(0)).reshape(-1)[0]) for t in got]
    if rank == 0:
        print("tokens", tokens, flush=True)
    for alike in (("lax", "cxl", "plain", "plain_cxl"), ("jit", "takeover")):
        found = {tuple(tokens[way]) for way in alike if way in ways}
        # More than two ranks add in the order of each library.
        assert len(found) <= 1 or n > 2, tokens
    times = {way: ([], []) for way in ways}
    for way in plain.keys() & {"plain", "plain_cxl"}:
        plain[way].times()
    for _ in range(options.turns):
        for way in ways:
            begin = time.perf_counter()
            got = run(way, options.steps, 9 if decodes else 0)
            enqueued = time.perf_counter()
            jax.block_until_ready(got[-1])
            end = time.perf_counter()
            times[way][0].append((end - begin) / options.steps * 1e6)
            times[way][1].append((enqueued - begin) / options.steps * 1e6)
    found = {}
    for way in ways:
        found[way] = {"us": _summary(times[way][0]), "enqueue_us": _summary(times[way][1])}
        if "none" in ways and way != "none":
            # Neighboring turns: a slow moment of the machine counts for both.
            costs = np.subtract(times[way][0], times["none"][0]) / (2 * options.layers)
            found[way]["a_sum_us"] = _summary(costs)
        if way.startswith("plain"):
            host = plain[way].times()
            found[way]["host_us"] = {
                p: round(float(np.percentile(host, p)), 2) for p in (10, 50, 90)
            }
    if rank == 0:
        figures = {k: v for k, v in vars(options).items() if k not in ("ways", "plain", "json")}
        figures |= {"ranks": n, "ways": found}
        print(json.dumps(figures), flush=True)
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
