"""The trainer of serve.py, in JAX."""

import gc
import pathlib
import sys
import time
import warnings

import jax
import llama
import numpy as np
from board import Board, bytes_of_store, make, say

import jax_cxl


def _publish(board: Board, name: str, size: llama.Size) -> None:
    tokens = np.arange(5, 37) % size.vocab_size
    nbytes = bytes_of_store(size.nbytes())
    make(board.store(name), nbytes)
    board.put(f"{name}.made")
    say("trainer", size=name, made=nbytes)
    with jax_cxl.Store(f"file:{board.store(name)}?size={nbytes}") as store:
        for version in range(board.versions):
            weights = jax.block_until_ready(llama.jax_weights(size, version))
            logits = {"bfloat16": np.asarray(llama.jax_logits(size, weights, tokens)).tolist()}
            if not version and size.nbytes() < 2 << 30:  # All weights in float32 fit too.
                wide = {key: x.astype(np.float32) for key, x in weights.items()}
                with jax.default_matmul_precision("highest"):
                    found = llama.jax_logits(size, wide, tokens)
                logits["float32"] = np.asarray(found).tolist()
                del wide
            say("trainer", size=name, computed=version)
            begin = time.monotonic()
            store.publish("policy", weights, version=version)
            returned = time.monotonic()
            store.flush("policy")
            times = {"begin": begin, "returned": returned, "flushed": time.monotonic()}
            board.put(f"{name}.{version}.published", times | {"logits": logits})
            del weights
            board.get(f"{name}.{version}.taken")
    del store
    gc.collect()  # The memory is unregistered.
    board.store(name).unlink()


def _save(kind: str, path: pathlib.Path, weights) -> None:
    host = {k: np.asarray(v) for k, v in jax.device_get(weights).items()}
    if kind == "safetensors":
        import safetensors.numpy

        safetensors.numpy.save_file(host, path)
        return
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The arrays of JAX are read-only, and nobody writes here.
        bits = {k: torch.from_numpy(v.view(np.int16)) for k, v in host.items()}
    torch.save({k: v.view(torch.bfloat16) for k, v in bits.items()}, path)


def main() -> None:
    """Publishes the versions of each size, and then writes the files."""
    board = Board(sys.argv)
    if jax.default_backend() != "cpu":
        say("trainer", device=jax.devices()[0].device_kind, jax=jax.__version__)
    for name in board.sizes:
        size = llama.SIZES[name]
        _publish(board, name, size)
        import torch  # noqa: F401  The time of the import is not that of a file.

        for number in range(board.files):
            for kind in ("safetensors", "torch.save"):
                weights = jax.block_until_ready(llama.jax_weights(size, number))
                path = board.folder / f"{name}.{number}.{kind}"
                begin = time.monotonic()
                _save(kind, path, weights)
                board.put(f"{path.name}.saved", {"begin": begin, "end": time.monotonic()})
                del weights
                board.get(f"{path.name}.loaded")
                path.unlink()


if __name__ == "__main__":
    main()
