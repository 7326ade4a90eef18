"""One job reads prompts, another job continues them: the cache goes through a store.

    python examples/prefill_decode.py

The first job computes keys and values of the prompts, and publishes them. The second job decodes
over a view of them, without a copy of its own. The tokens are those of a single job that does both.
"""

import functools
import json
import subprocess
import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from common import transformer

import jax_cxl

_ROLE = flags.DEFINE_enum("role", None, ["prefill", "decode", "both"], "What this process does.")
_WHERE = flags.DEFINE_string("where", "", "URI of the store; by default a new one.")
_REQUESTS = flags.DEFINE_integer("requests", 3, "How many batches of prompts there are.")
_TOKENS = flags.DEFINE_integer("tokens", 8, "How many tokens to decode.")

_SIZES = transformer.Sizes(layers=2, width=64, heads=4)
_BATCH, _LENGTH = 4, 96

Model = dict[str, Any]


def model() -> Model:
    """Returns the parameters, the same in each job."""
    keys = jax.random.split(jax.random.key(0), _SIZES.layers + 1)
    return {
        "outer": transformer.init_embedding(keys[0], _SIZES),
        "layers": [transformer.init_layer(key, _SIZES) for key in keys[1:]],
    }


def attend(
    layer: transformer.Parameters,
    x: jax.Array,
    cache: list[tuple[jax.Array, jax.Array]],
    start: Any,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Attends from x, (B, T, D), to the positions in `cache` and to x itself.

    Returns:
      The output, and the keys and values of x.
    """
    batch, length, width = x.shape
    heads = _SIZES.heads
    qkv = (x @ layer["qkv"]).reshape(batch, length, heads, 3, width // heads)
    queries, keys = (transformer.rotate(qkv[:, :, :, i], start) for i in range(2))
    own = keys, qkv[:, :, :, 2]
    keys, values = (jnp.concatenate(parts, 1) for parts in zip(*cache, own, strict=True))
    scores = jnp.einsum("bqhk,bthk->bhqt", queries, keys) * (width // heads) ** -0.5
    position = start + jnp.arange(length)[:, None]
    scores = jnp.where(jnp.arange(keys.shape[1]) <= position, scores, -jnp.inf)
    mixed = jnp.einsum("bhqt,bthk->bqhk", jax.nn.softmax(scores), values)
    return mixed.reshape(batch, length, width) @ layer["out"], own


def run(model: Model, tokens: jax.Array, caches: list[Any], start: Any) -> tuple[jax.Array, Any]:
    """Returns the token that follows `tokens`, (B,), and the keys and values of `tokens`."""
    x = transformer.embed(model["outer"], tokens)
    made = []
    for layer, cache in zip(model["layers"], caches, strict=True):
        normal = transformer.normalize(x, layer["attention_norm"])
        out, own = attend(layer, normal, cache, start)
        made.append(own)
        x = x + out
        hidden = jax.nn.gelu(transformer.normalize(x, layer["mlp_norm"]) @ layer["up"])
        x = x + hidden @ layer["down"]
    last = transformer.normalize(x[:, -1], model["outer"]["norm"])
    return jnp.argmax(last @ model["outer"]["embedding"].T, -1), made


@jax.jit
def prefill(model: Model, prompts: jax.Array) -> dict[str, Any]:
    """Returns the keys and values of prompts (B, T), and the first token after each prompt."""
    first, made = run(model, prompts, [[] for _ in model["layers"]], 0)
    return {"first": first, "layers": [{"keys": k, "values": v} for k, v in made]}


@functools.partial(jax.jit, static_argnums=2)
def decode(model: Model, cache: dict[str, Any], count: int) -> jax.Array:
    """Returns the first `count` tokens after each prompt, (B, count)."""
    prompts = [[(layer["keys"], layer["values"])] for layer in cache["layers"]]
    own: list[list[tuple[jax.Array, jax.Array]]] = [[] for _ in prompts]
    tokens = [cache["first"]]
    for step in range(count - 1):
        caches = [given + made for given, made in zip(prompts, own, strict=True)]
        token, made = run(model, tokens[-1][:, None], caches, _LENGTH + step)
        for layer, new in zip(own, made, strict=True):
            layer.append(new)
        tokens.append(token)
    return jnp.stack(tokens, 1)


def prompts(request: int) -> np.ndarray:
    """Returns the prompts of a request, (B, T)."""
    return np.random.default_rng(request).integers(0, 256, (_BATCH, _LENGTH), np.int32)


def main(_: list[str]) -> None:
    count = _TOKENS.value
    if _ROLE.value == "prefill":
        with jax_cxl.Store(_WHERE.value) as store:
            for request in range(_REQUESTS.value):
                store.publish(f"request {request}", prefill(model(), prompts(request)))
    elif _ROLE.value == "decode":
        store = jax_cxl.Store(_WHERE.value)
        for request in range(_REQUESTS.value):
            name = f"request {request}"
            store.wait(name)
            like = jax.eval_shape(prefill, model(), prompts(request))
            with store.view(name, like) as view:
                tokens = np.asarray(decode(model(), view.tree, count))
                view.check()
            print(json.dumps(tokens.tolist()), flush=True)
    elif _ROLE.value == "both":
        for request in range(_REQUESTS.value):
            tokens = decode(model(), prefill(model(), prompts(request)), count)
            print(json.dumps(np.asarray(tokens).tolist()), flush=True)
    else:
        compare()


def compare() -> None:
    """Compares the tokens of two jobs that share a store with those of one job that does both."""
    with tempfile.TemporaryDirectory(prefix="jax_cxl_prefill.", dir="/dev/shm") as folder:
        where = _WHERE.value or f"file:{folder}/store?size=96MiB"

        def start(role: str) -> subprocess.Popen[str]:
            command = [
                sys.executable,
                __file__,
                *sys.argv[1:],
                f"--role={role}",
                f"--where={where}",
            ]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        roles = ("decode", "prefill", "both")
        jobs = {role: start(role) for role in roles}
        said = {role: job.communicate()[0].splitlines() for role, job in jobs.items()}
        if any(job.returncode for job in jobs.values()):
            raise SystemExit("a job failed")
    if said["decode"] != said["both"]:
        raise SystemExit("the tokens of two jobs differ from those of one job")
    count = _REQUESTS.value * _BATCH * _TOKENS.value
    print(f"{count} tokens of two jobs are equal to those of one job")


if __name__ == "__main__":
    app.run(main)
