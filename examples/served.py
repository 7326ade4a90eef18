"""A trainer in JAX publishes the weights of a small language model, and PyTorch generates text.

    pip install torch
    python examples/served.py

This starts two programs that know nothing of each other but the name of a store. The server never
imports JAX. It takes each new version between two bytes of its text. Later versions predict text
better. Start the server again with `--role=server` at any time, or several of them.
"""

import ast
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
from absl import app, flags
from common import stores

import jax_cxl

_WHERE = flags.DEFINE_string("where", "shm:served_example?size=32MiB", "URI of the store.")
_VERSIONS = flags.DEFINE_integer("versions", 12, "How many versions the trainer publishes.")
_ROLE = flags.DEFINE_enum("role", "", ["", "trainer", "server"], "By default starts both.")

_CONTEXT, _WIDTH, _HIDDEN, _BATCH = 8, 32, 256, 256
_STEPS_OF_A_VERSION, _RATE = 150, 0.5

# The model predicts the next byte of a text. The shapes and names are those of PyTorch.
_SHAPES = {
    "embed.weight": (256, _WIDTH),
    "hidden.weight": (_HIDDEN, _CONTEXT * _WIDTH),
    "hidden.bias": (_HIDDEN,),
    "out.weight": (256, _HIDDEN),
    "out.bias": (256,),
}


def windows(start: int, stop: int) -> np.ndarray:
    """Returns parts of a text with the byte that follows, (windows, 9), from `start` to `stop`."""
    text = np.frombuffer(pathlib.Path(ast.__file__).read_bytes(), np.uint8).astype(np.int32)
    return np.lib.stride_tricks.sliding_window_view(text, _CONTEXT + 1)[start:stop]


def train() -> None:
    """Trains the model in JAX, and publishes versions of its weights."""
    import jax
    import jax.numpy as jnp

    def loss(params: dict[str, Any], batch: Any) -> Any:
        x = params["embed.weight"][batch[:, :-1]].reshape(len(batch), -1)
        x = jnp.tanh(x @ params["hidden.weight"].T + params["hidden.bias"])
        likely = jax.nn.log_softmax(x @ params["out.weight"].T + params["out.bias"])
        return -jnp.mean(likely[jnp.arange(len(batch)), batch[:, -1]])

    @jax.jit
    def step(params: dict[str, Any], batch: Any) -> dict[str, Any]:
        slopes = jax.grad(loss)(params, batch)
        return jax.tree.map(lambda x, slope: x - _RATE * slope, params, slopes)

    rng, text = np.random.default_rng(0), windows(0, 20_000)
    params = {
        name: jnp.asarray(rng.normal(0, 0.5 / shape[-1] ** 0.5, shape), jnp.float32)
        for name, shape in _SHAPES.items()
    }
    with jax_cxl.Store(_WHERE.value) as store:
        for version in range(_VERSIONS.value):
            for _ in range(_STEPS_OF_A_VERSION if version else 0):
                params = step(params, text[rng.integers(len(text), size=_BATCH)])
            store.publish("policy", params, version=version)  # The next steps run meanwhile.


def serve() -> None:
    """Generates text in PyTorch, with the newest weights, until the last version is there."""
    import torch

    torch.set_num_threads(1)
    embed = torch.nn.Embedding(256, _WIDTH)
    hidden, out = torch.nn.Linear(_CONTEXT * _WIDTH, _HIDDEN), torch.nn.Linear(_HIDDEN, 256)
    model = torch.nn.ModuleDict({"embed": embed, "hidden": hidden, "out": out})

    def logits(context: torch.Tensor) -> torch.Tensor:
        return out(torch.tanh(hidden(embed(context).flatten(1))))

    held_out = torch.from_numpy(windows(20_000, 24_000).copy()).long()
    text = list(b"def name")

    def report(version: int) -> None:
        error = torch.nn.functional.cross_entropy(logits(held_out[:, :-1]), held_out[:, -1])
        said = bytes(text[-24:]).decode(errors="replace")
        print(f"version {version}: {error:.3f} nats per byte after {len(text)} bytes, {said!r}")

    store = jax_cxl.Store(_WHERE.value)
    with torch.inference_mode():
        # This waits for a trainer. It writes into the parameters, which stay where they are.
        last = store.read("policy", into=model.state_dict(), newer_than=-1)
        report(last.version)
        while last.version < _VERSIONS.value - 1:
            chances = torch.softmax(logits(torch.tensor([text[-_CONTEXT:]])), 1)
            text.append(int(torch.multinomial(chances, 1)))
            if store.wait("policy") > last.version:
                last = store.read("policy", into=last)
                report(last.version)
    print(f"the server has imported JAX: {'jax' in sys.modules}")


def main(_: list[str]) -> None:
    if _ROLE.value:
        {"trainer": train, "server": serve}[_ROLE.value]()
        return
    stores.remove(_WHERE.value)
    command = [sys.executable, *sys.argv]
    programs = [subprocess.Popen([*command, f"--role={role}"]) for role in ("server", "trainer")]
    try:
        if any(program.wait() for program in programs):
            raise SystemExit("a program failed")
    finally:
        for program in programs:
            program.kill()
        stores.remove(_WHERE.value)


if __name__ == "__main__":
    app.run(main)
