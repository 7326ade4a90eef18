"""A process of the report: it uses one card, and does what the command asks for.

Every request names a method of `Rank`. The answer is what the method returns, or an exception.
"""

from __future__ import annotations

import ctypes
import multiprocessing.connection
import random
import sys
from collections.abc import Callable
from typing import Any

from . import cuda, nccl

# Values repeat after this many elements, a prime. They are small integers, so sums are exact.
_PERIOD = 10_007
_FLOAT = 4
_COLLECTIVES = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
}
# A decoder of 32 layers has 64 sums. Four pairs of weights are larger than a card's caches.
_WIDTH = 8192
_SUMS = {"decode": 64, "prefill": 8}
_TOKENS = {"decode": 1, "prefill": 4096}
_PAIRS = 4


class Rank:
    """One rank. It makes calls of NCCL of the same size on all ranks.

    Args:
      rank: the rank, and the number of its card.
      size: number of ranks.
      library: path of the library, or its name if the loader shall find it.
    """

    def __init__(self, rank: int, size: int, library: str) -> None:
        self.rank, self.size = rank, size
        self.card = cuda.Card(rank)
        self.link = self.card.link
        self.nccl = nccl.Library(library)
        self.unique_id = self.nccl.unique_id

    def start(self, unique: bytes, most: int) -> int:
        """Makes the communicator, and memory for calls of up to `most` bytes.

        Returns:
          the version of NCCL.
        """
        self.comm, number = ctypes.c_void_p(), ctypes.c_int()
        which = nccl.UniqueId.from_buffer_copy(unique)
        self.nccl.call("ncclCommInitRank", ctypes.byref(self.comm), self.size, which, self.rank)
        self.source, self.target, self.one = map(self.card.memory, (most, most, 256))
        self.nccl.call("ncclGetVersion", ctypes.byref(number))
        return number.value

    def check(self, op: str, size: int, calls: int) -> int:
        """Makes calls of `size` bytes; returns how many elements of the last result are wrong."""
        blocks = 1 if op in ("all_reduce", "sendrecv") else self.size
        count = size // _FLOAT // blocks  # of a block
        self.card.fill(self.source, _values([self.rank], 0, size // _FLOAT))
        self.card.fill(self.target, b"\xff" * size)  # No float that a call gives.
        self.microseconds(op, size, calls)
        here, ranks = self.rank * count, range(self.size)
        wanted = {
            "all_reduce": lambda: _values(ranks, 0, count),
            "all_gather": lambda: b"".join(_values([rank], 0, count) for rank in ranks),
            "reduce_scatter": lambda: _values(ranks, here, count),
            "alltoall": lambda: b"".join(_values([rank], here, count) for rank in ranks),
            "sendrecv": lambda: _values([(self.rank - 1) % self.size], 0, count),
        }[op]()
        got = self.card.read(self.target, len(wanted))
        if got == wanted:
            return 0
        pairs = range(0, len(wanted), _FLOAT)
        return sum(got[i : i + _FLOAT] != wanted[i : i + _FLOAT] for i in pairs)

    def microseconds(self, op: str, size: int, calls: int) -> float:
        """Returns the mean time of calls of `size` bytes, one after the other."""
        steps = self._steps(op, size) * calls

        def enqueue() -> None:
            for function, arguments in steps:
                if function(*arguments):
                    self.nccl.call(function.__name__, *arguments)  # Raises the error.

        return self._timed(enqueue) / calls

    def _timed(self, enqueue: Callable[[], None]) -> float:
        # Begin together: a sum of one element ends on no rank before it has begun on all ranks.
        self._sum(self.one, 1, nccl.FLOAT32, self.card.stream)
        taken = self.card.microseconds(enqueue)
        if error := self.nccl.async_error(self.comm):
            raise RuntimeError(
                f"the communicator has error {error}: {self.nccl.last_error(self.comm)}"
            )
        return taken

    def _sum(self, address: int, count: int, dtype: int, stream: ctypes.c_void_p) -> None:
        place = ctypes.c_void_p(address)
        how = (ctypes.c_size_t(count), dtype, nccl.SUM, self.comm, stream)
        self.nccl.call("ncclAllReduce", place, place, *how)

    def _steps(self, op: str, size: int) -> list[tuple[Any, tuple[Any, ...]]]:
        """Returns the functions that an operation calls, with their arguments.

        The blocks of an alltoall are sends and receives of a group, as in PyTorch.
        """
        blocks = 1 if op in ("all_reduce", "sendrecv") else self.size
        block = size // _FLOAT // blocks * _FLOAT
        how, end = (ctypes.c_size_t(block // _FLOAT), nccl.FLOAT32), (self.comm, self.card.stream)
        send, receive = ctypes.c_void_p(self.source), ctypes.c_void_p(self.target)
        if op in _COLLECTIVES:
            reduction = () if op == "all_gather" else (nccl.SUM,)
            return [self._step(_COLLECTIVES[op], send, receive, *how, *reduction, *end)]
        moves = [(peer, peer, peer) for peer in range(self.size)]
        if op == "sendrecv":
            moves = [(0, (self.rank + 1) % self.size, (self.rank - 1) % self.size)]
        steps = [self._step("ncclGroupStart")]
        for at, after, before in moves:
            send, receive = (ctypes.c_void_p(x + at * block) for x in (self.source, self.target))
            steps.append(self._step("ncclSend", send, *how, after, *end))
            steps.append(self._step("ncclRecv", receive, *how, before, *end))
        return [*steps, self._step("ncclGroupEnd")]

    def _step(self, name: str, *arguments: Any) -> tuple[Any, tuple[Any, ...]]:
        return self.nccl.function(name), arguments

    def start_models(self) -> str:
        """Makes a decode step, captured in a CUDA graph, and a prefill of 4,096 tokens.

        Both alternate two matrix products, which are divided between the ranks, and a sum.

        Returns:
          the version of PyTorch, "" if there is none for GPUs.
        """
        try:
            import torch
        except ImportError:
            return ""
        if not torch.cuda.is_available():
            return ""
        torch.cuda.set_device(self.rank)
        how: Any = {"dtype": torch.bfloat16, "device": "cuda"}
        shapes = (_WIDTH, _WIDTH // self.size), (_WIDTH // self.size, _WIDTH)
        weights = [
            [torch.randn(shape, **how) * _WIDTH**-0.5 for shape in shapes] for _ in range(_PAIRS)
        ]

        def run(kind: str) -> None:
            x = inputs[kind]
            for i in range(_SUMS[kind]):
                up, down = weights[i % _PAIRS]
                x = x @ up @ down
                stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
                self._sum(x.data_ptr(), x.numel(), nccl.BFLOAT16, stream)

        inputs = {kind: torch.randn(rows, _WIDTH, **how) for kind, rows in _TOKENS.items()}
        torch.cuda.synchronize()
        stream = torch.cuda.ExternalStream(self.card.stream.value)
        with torch.cuda.stream(stream):
            for kind in inputs:
                run(kind)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run("decode")

        def enqueue(kind: str) -> None:
            with torch.cuda.stream(stream):
                graph.replay() if kind == "decode" else run(kind)

        self._models = enqueue
        return str(torch.__version__)

    def model(self, kind: str) -> float:
        """Returns the milliseconds of a decode step or of a prefill."""
        return self._timed(lambda: self._models(kind)) / 1e3


def _values(ranks: Any, first: int, count: int) -> bytes:
    """Returns the sums of what ranks send, from element `first` on, as float32."""
    every = [random.Random(rank) for rank in ranks]
    sums = [sum(each.randrange(256) for each in every) for _ in range(_PERIOD)]
    begin = first % _PERIOD
    period = (ctypes.c_float * _PERIOD)(*sums[begin:], *sums[:begin])
    return (bytes(period) * (count // _PERIOD + 1))[: count * _FLOAT]


def main() -> None:
    """Answers the requests of the command until it goes."""
    descriptor, rank, size, library = sys.argv[1:]
    command = multiprocessing.connection.Connection(int(descriptor))
    this = None
    while True:
        try:
            name, arguments = command.recv()
        except EOFError:
            return
        try:
            this = this or Rank(int(rank), int(size), library)
            command.send(getattr(this, name)(*arguments))
        except Exception as error:
            command.send(RuntimeError(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
