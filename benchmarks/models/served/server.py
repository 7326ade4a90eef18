"""The server of serve.py, in PyTorch. It does not import JAX."""

import copy
import gc
import itertools
import statistics
import sys
import time

import llama
import torch
from board import Board, say

import jax_cxl
from jax_cxl._store.reading import into_gpus


class _Generation:
    """Generates one token after the other.

    Attributes:
      times: when each token was there.
      gaps: for how long the device had computed nothing when the computation of each token began.
    """

    def __init__(self, model, device: str):
        self._model, self._device = model, device
        self.times: list[float] = []
        self.gaps: list[float] = []
        self._begun = self._ended = self._mark()
        self._begin()

    def _begin(self) -> None:
        self._cache, self._tokens = None, torch.arange(5, 21, device=self._device)[None]

    def step(self) -> None:
        """Generates a token."""
        self.launch()
        self.end()

    @torch.inference_mode()
    def launch(self) -> None:
        """Enqueues the computation of a token."""
        if len(self.times) % 256 == 255:
            self._begin()
        self._before, self._begun = self._ended, self._mark()
        out = self._model(self._tokens, past_key_values=self._cache, use_cache=True)
        self._cache = out.past_key_values
        self._tokens = out.logits[:, -1:].argmax(-1)
        self._ended = self._mark()

    def end(self) -> None:
        """Waits for the token."""
        self._tokens.item()
        self.times.append(time.monotonic())
        before, begun = self._before, self._begun
        gap = begun - before if self._device == "cpu" else before.elapsed_time(begun) / 1e3
        self.gaps.append(gap)

    def _mark(self):
        """Returns the time at which the device comes to this place."""
        if self._device == "cpu":
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class _Phases:
    """Notes when the phases of a read end, in seconds since its begin."""

    def __init__(self, device: str):
        self.seconds: dict[str, float] = {}
        self._device, self._begin = device, 0.0
        self._events: list[torch.cuda.Event] = []
        self._start, self._finish = into_gpus.start, into_gpus.Copies.finish
        into_gpus.start = self._starting
        into_gpus.Copies.finish = lambda copies: self._finishing(copies)

    def begin(self) -> None:
        self.seconds, self._begin = {}, time.monotonic()

    def note(self, phase: str) -> None:
        self.seconds[phase] = time.monotonic() - self._begin

    def _starting(self, reader, parts):
        self.note("found")
        self._record()
        copies = self._start(reader, parts)
        self._record()
        self.note("started")
        return copies

    def _finishing(self, copies):
        self._finish(copies)
        self.note("finished")

    def _record(self) -> None:
        if self._device != "cpu":
            event = torch.cuda.Event(enable_timing=True)
            event.record(into_gpus._stream(torch.device(self._device)))
            self._events = [*self._events[-1:], event]

    def copied(self) -> float:
        """Returns how long the copies took on the GPU."""
        if not self._events:
            return 0.0
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1]) / 1e3


def _relative(model, size: llama.Size, device: str, dtype, expected: list[float]) -> float:
    """Compares logits, computed in a dtype, with JAX's."""
    tokens = torch.arange(5, 37, device=device)[None] % size.vocab_size
    if dtype != model.dtype:
        model = copy.deepcopy(model).to(dtype)
    with torch.inference_mode():
        own = model(tokens).logits[0, -1].double().cpu()
    other = torch.tensor(expected, dtype=torch.float64)
    return float((own - other).norm() / other.norm())


def _serve(board: Board, name: str, size: llama.Size, model, device: str) -> None:
    state = model.state_dict()
    phases = _Phases(device)
    generation = _Generation(model, device)
    for _ in range(8):
        generation.step()
    say("server", size=name, generates=len(generation.times))
    board.get(f"{name}.made")
    store = jax_cxl.Store(f"file:{board.store(name)}")
    store.wait("policy", timeout=max(1, board.end - time.monotonic()))
    last, have = None, -1
    for version in range(board.versions):
        while store.wait("policy") <= have:
            generation.step()
        non_blocking = version % 2 == 1
        waited = time.monotonic() - generation.times[-1]
        if non_blocking:
            generation.launch()  # The copies begin when this token has been computed.
        begin = time.monotonic()
        phases.begin()
        into = state if last is None else last
        last = store.read("policy", into=into, non_blocking=non_blocking)
        phases.note("returned")
        end = time.monotonic()
        if non_blocking:
            generation.end()
            phases.note("token")
            last.wait()
        generation.launch()
        phases.note("launched")
        last.check()
        generation.end()
        have = last.version
        first = generation.times[-1]
        start = len(generation.times)
        for _ in range(8):
            generation.step()
        steps = generation.times[start - 1 :]
        token = statistics.median(b - a for a, b in itertools.pairwise(steps))
        gap = statistics.median(generation.gaps[start:])
        published = board.get(f"{name}.{version}.published")
        errors = {
            dtype: _relative(model, size, device, getattr(torch, dtype), logits)
            for dtype, logits in published["logits"].items()
        }
        say(
            "version",
            size=name,
            version=have,
            wrong=llama.torch_wrong(size, have, state) + (have != version),
            publish_returns=published["returned"] - published["begin"],
            publish_and_flush=published["flushed"] - published["begin"],
            publish_to_first_token=first - published["begin"],
            non_blocking=non_blocking,
            waited=waited,
            read=end - begin,
            copied=phases.copied(),
            phases={k: round(v, 5) for k, v in phases.seconds.items()},
            first=first - begin,
            pause=generation.gaps[start - 1] - gap,
            gap=gap,
            token=token,
            logits_relative_error=errors,
        )
        board.put(f"{name}.{version}.taken")
    say("server", size=name, imported_jax="jax" in sys.modules, bytes=size.nbytes())
    for memory in (None, store._names.devices().mapped):
        _link(name, state, device, memory)
    del last, store, memory
    gc.collect()


def _link(name: str, state, device: str, mapped) -> None:
    """Times the bare copy of all weights from pinned memory, or from the memory of the store."""
    total = sum(x.nbytes for x in state.values())
    if mapped is None:
        size = min(total, 2 << 30)
        memory = torch.zeros(size, dtype=torch.uint8, pin_memory=device != "cpu")
    else:
        memory = torch.from_numpy(mapped)[2 << 20 :]
    for number in range(4):
        _wait(device)
        begin, at = time.monotonic(), 0
        for x in state.values():
            at = at if at + x.nbytes <= len(memory) else 0
            part = memory[at : at + x.nbytes].view(x.dtype)
            x.view(-1).copy_(part, non_blocking=True)
            at += x.nbytes
        _wait(device)
        if number:  # The first copy is slower.
            kind = "link" if mapped is None else "link_from_store"
            say(kind, size=name, seconds=time.monotonic() - begin)


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
        say("server", size=name, made_model=True)
        _serve(board, name, size, model, device)
        _files(board, name, size, model.state_dict(), device)
        del model
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
