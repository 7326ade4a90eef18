"""The server of serve.py, in PyTorch. It does not import JAX."""

import gc
import itertools
import statistics
import sys
import time

import llama
import torch
from board import Board, say

import jax_cxl


class _Generation:
    """Generates one token after the other, and keeps the time at which each was there."""

    def __init__(self, model, device: str):
        self._model, self._device = model, device
        self.times: list[float] = []
        self._begin()

    def _begin(self) -> None:
        self._cache, self._tokens = None, torch.arange(5, 21, device=self._device)[None]

    @torch.inference_mode()
    def step(self) -> None:
        """Generates a token."""
        if len(self.times) % 256 == 255:
            self._begin()
        out = self._model(self._tokens, past_key_values=self._cache, use_cache=True)
        self._cache = out.past_key_values
        self._tokens = out.logits[:, -1:].argmax(-1)
        self._tokens.item()  # Waits for the GPU.
        self.times.append(time.monotonic())


def _relative(model, size: llama.Size, device: str, expected: list[float]) -> tuple[float, bool]:
    """Compares logits with JAX's; also returns whether both have the same most likely token."""
    tokens = torch.arange(5, 37, device=device)[None] % size.vocab_size
    with torch.inference_mode():
        own = model(tokens).logits[0, -1].double().cpu()
    other = torch.tensor(expected, dtype=torch.float64)
    return float((own - other).norm() / other.norm()), bool(own.argmax() == other.argmax())


def _serve(board: Board, name: str, size: llama.Size, model, device: str) -> None:
    state = model.state_dict()
    store = jax_cxl.Store(board.where(name, size.nbytes()))
    generation = _Generation(model, device)
    for _ in range(8):
        generation.step()
    store.wait("policy", timeout=max(1, board.end - time.monotonic()))
    last, have = None, -1
    for version in range(board.versions):
        while store.wait("policy") <= have:
            generation.step()
        before = generation.times[-1]
        begin = time.monotonic()
        last = store.read("policy", into=state if last is None else last)
        end = time.monotonic()
        have = last.version
        generation.step()
        first = generation.times[-1]
        start = len(generation.times)
        for _ in range(8):
            generation.step()
        steps = generation.times[start - 1 :]
        token = statistics.median(b - a for a, b in itertools.pairwise(steps))
        published = board.get(f"{name}.{version}.published")
        error, same = _relative(model, size, device, published["logits"])
        say(
            "version",
            size=name,
            version=have,
            wrong=llama.torch_wrong(size, have, state) + (have != version),
            publish_returns=published["returned"] - published["begin"],
            publish_and_flush=published["flushed"] - published["begin"],
            publish_to_first_token=first - published["begin"],
            read=end - begin,
            pause=first - before - token,
            token=token,
            logits_relative_error=error,
            same_token=same,
        )
        board.put(f"{name}.{version}.taken")
    say("server", size=name, imported_jax="jax" in sys.modules, bytes=size.nbytes())
    del last, store
    gc.collect()
    _link(name, state, device)


def _link(name: str, state, device: str) -> None:
    """Times the bare copy of all weights from pinned memory."""
    most = max(x.numel() for x in state.values())
    pinned = torch.zeros(most, dtype=torch.bfloat16, pin_memory=device != "cpu")
    for number in range(4):
        _wait(device)
        begin = time.monotonic()
        for x in state.values():
            x.view(-1).copy_(pinned[: x.numel()], non_blocking=True)
        _wait(device)
        if number:  # The first copy is slower.
            say("link", size=name, seconds=time.monotonic() - begin)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _load(kind: str, path, state, device: str) -> None:
    if kind == "safetensors":
        import safetensors

        with safetensors.safe_open(path, "pt", device=device) as file:
            for key, x in state.items():
                x.copy_(file.get_tensor(key))
    else:
        loaded = torch.load(path, map_location=device, mmap=True)
        for key, x in state.items():
            x.copy_(loaded[key])
    _wait(device)


def _files(board: Board, name: str, size: llama.Size, state, device: str) -> None:
    import safetensors  # noqa: F401

    for number in range(board.files):
        for kind in ("safetensors", "torch.save"):
            path = board.folder / f"{name}.{number}.{kind}"
            saved = board.get(f"{path.name}.saved")
            begin = time.monotonic()
            _load(kind, path, state, device)
            end = time.monotonic()
            say(
                kind,
                size=name,
                wrong=llama.torch_wrong(size, number, state),
                bytes=path.stat().st_size,
                save=saved["end"] - saved["begin"],
                load=end - begin,
                save_and_load=saved["end"] - saved["begin"] + end - begin,
            )
            board.put(f"{path.name}.loaded")


def main() -> None:
    """Serves each size."""
    board = Board(sys.argv)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        try:
            import torchstore  # noqa: F401
        except ImportError as error:
            say("torchstore", skipped=str(error))
    for name in board.sizes:
        size = llama.SIZES[name]
        model = llama.torch_model(size, device)
        _serve(board, name, size, model, device)
        _files(board, name, size, model.state_dict(), device)
        del model
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
