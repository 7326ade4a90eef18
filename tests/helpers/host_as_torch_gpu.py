"""Lets tensors of the CPU play tensors on GPUs, for tests of reads into such tensors."""

import contextlib
from unittest import mock

import torch

from jax_cxl._store import frameworks
from jax_cxl._store.reading import into_gpus
from jax_cxl._store.trees import tensors


class _Stream:
    """A stream, and what it waits for."""

    def __init__(self, gpu):
        self._gpu = gpu
        self.waits_for = []

    def wait_stream(self, other):
        self.waits_for.append(other)

    def wait_event(self, event):
        self.waits_for.append(event)

    def synchronize(self):
        self._gpu.run()


class _Event:
    def __init__(self, gpu):
        self._gpu, self._after, self.waited = gpu, None, False

    def record(self, stream):
        assert stream.waits_for
        self._after = len(self._gpu.enqueued)

    def query(self):
        return self._gpu.ended >= self._after

    def synchronize(self):
        self.waited = True
        self._gpu.run(self._after)


class Gpu:
    """Plays `torch.cuda`. Makes copies as late as a GPU may: only when somebody waits.

    Attributes:
      copied: bytes that went to tensors.
      enqueued: all copies.
      ended: how many of them have been made.
      current: the program's stream.
    """

    def __init__(self):
        self.copied = 0
        self.events = []
        self.enqueued = []
        self.ended = 0
        self.current = _Stream(self)

    def run(self, until=None):
        with torch.inference_mode():
            for copy in self.enqueued[self.ended : until]:
                copy()
                self.ended += 1

    def Stream(self, device):
        del device
        return _Stream(self)

    def current_stream(self, device):
        del device
        return self.current

    @contextlib.contextmanager
    def stream(self, stream):
        assert stream.waits_for, "copies must wait for what the program has enqueued"
        yield

    def Event(self, **_):
        event = _Event(self)
        self.events.append(event)
        return event


class _Torch:
    """PyTorch, with another `cuda`."""

    def __init__(self, cuda):
        self.cuda = cuda

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, *args, pin_memory=False, **more):
        del pin_memory
        return torch.empty(*args, **more)


@contextlib.contextmanager
def tensors_on_gpus():
    """Yields the `Gpu`."""
    gpu = Gpu()
    of_gpu = _Torch(gpu)
    copy = torch.Tensor.copy_

    def counted(self, source, non_blocking=False):
        assert non_blocking
        gpu.copied += source.nbytes
        gpu.enqueued.append(lambda: copy(self, source))

    into_gpus._stream.cache_clear()
    with (
        mock.patch.object(frameworks, "torch", lambda: of_gpu),
        mock.patch.object(tensors, "is_on_gpu", lambda _: True),
        mock.patch.object(torch.Tensor, "copy_", counted),
    ):
        yield gpu
    into_gpus._stream.cache_clear()
