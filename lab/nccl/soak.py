"""Makes random calls of NCCL's functions between the GPUs of a machine, one process for each GPU.

    JAX_CXL_NCCL_HOSTS=all LD_PRELOAD=.../_nccl/libnccl.so.2 \\
        python -m lab.nccl.soak --ranks=4 --seconds=600

Every round makes communicators by ncclCommSplit, blocking or not, and by ncclCommShrink. Then it
makes batches of calls. A batch is one group of one to four calls on random communicators. Some
batches are captured in a CUDA graph and replayed with other values, and calls that are not captured
run in between. Inputs are small integers, so that every result is exact. Prints a line of JSON for
each round, and ends with 1 if a value was wrong. Without LD_PRELOAD it tries NCCL itself.

Needs PyTorch, for memory of the GPU.
"""

import argparse
import ctypes
import dataclasses
import json
import multiprocessing as mp
import os
import random
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from lab.nccl.nccl_functions import SUMS, TYPES, Library

_CALLS = (
    *("ncclAllReduce", "ncclReduceScatter", "ncclReduce", "ncclBroadcast", "ncclAllGather"),
    *("ncclAlltoAll", "ncclGather", "ncclScatter", "ncclSend"),
)
_REDUCES = ("ncclAllReduce", "ncclReduceScatter", "ncclReduce")
_PREMULTIPLIED = ("factor", "device factor")
_MANY_IN = ("ncclReduceScatter", "ncclAlltoAll", "ncclScatter")
_MANY_OUT = ("ncclAllGather", "ncclAlltoAll", "ncclGather")
# Whether communicators with one rank go through pools. Otherwise NVIDIA's library executes their
# calls, and this program leaves out premultiplied sums: versions before 2.29.7 do not write the
# last elements (https://github.com/NVIDIA/nccl/issues/1950).
_POOLS_FOR_ONE_RANK = os.environ.get("JAX_CXL_NCCL_HOSTS") == "all"


@dataclasses.dataclass
class _Comm:
    """A communicator, and the job's ranks that belong to it, in the communicator's order."""

    ranks: list[int]
    handle: ctypes.c_void_p | None  # of this process, if it is a member


@dataclasses.dataclass
class _Call:
    """A call that all members of a communicator make. `seed` determines its values."""

    name: str
    comm: _Comm
    dtype: str
    count: int
    op: str
    root: int
    seed: int


class _Rank:
    def __init__(self, rank: int, size: int, parent: Connection) -> None:
        import torch

        self.torch = torch
        torch.cuda.set_device(rank)
        self.rank, self.size = rank, size
        self.nccl = Library()
        if rank == 0:
            parent.send_bytes(self.nccl.unique_id())
        unique = parent.recv_bytes()
        self.world = _Comm([*range(size)], self.nccl.init_rank(size, unique, rank))
        self.stream = torch.cuda.Stream()
        self.calls = self.wrong = 0

    def values(self, call: _Call, rank: int) -> Any:
        """Returns what `rank` sends in a call."""
        blocks = len(call.comm.ranks) if call.name in _MANY_IN else 1
        index = self.torch.arange(call.count * blocks, device="cuda")
        return ((index + 3 * rank + call.seed) % 5 + 1).to(getattr(self.torch, call.dtype))

    def factor(self, call: _Call, rank: int) -> Any:
        """Returns the factor of `rank` in a premultiplied sum.

        A factor on the device changes with each replay of a graph, and one on the host does not.
        """
        turn = call.seed if call.op == "device factor" else 0
        return self.torch.tensor([(rank + turn) % 3 + 1], dtype=getattr(self.torch, call.dtype))

    def expected(self, call: _Call) -> Any:
        """Returns what this rank has to receive in a call, or None if it receives nothing."""
        torch, ranks = self.torch, call.comm.ranks
        me = ranks.index(self.rank)
        sent = [self.values(call, rank) for rank in ranks]
        if call.name in ("ncclReduce", "ncclGather") and me != call.root:
            return None
        if call.name in _REDUCES:
            if call.op in _PREMULTIPLIED:
                pairs = zip(sent, ranks, strict=True)
                sent = [x * self.factor(call, rank).to(x.device) for x, rank in pairs]
            wide = torch.stack([x.double() for x in sent])
            total = {
                "sum": lambda: wide.sum(0),
                "prod": lambda: wide.prod(0),
                "max": lambda: wide.max(0).values,
                "min": lambda: wide.min(0).values,
            }["sum" if call.op in _PREMULTIPLIED else call.op]().to(sent[0].dtype)
            return total.chunk(len(ranks))[me] if call.name == "ncclReduceScatter" else total
        if call.name == "ncclBroadcast":
            return sent[call.root]
        if call.name == "ncclScatter":
            return sent[call.root].chunk(len(ranks))[me]
        if call.name == "ncclSend":
            return sent[me - 1]
        if call.name == "ncclAlltoAll":
            return torch.cat([x.chunk(len(ranks))[me] for x in sent])
        return torch.cat(sent)

    def enqueue(self, call: _Call, source: Any, target: Any, factor: Any) -> None:
        """Calls NCCL's function on the current stream.

        Args:
          call: the call.
          source: the memory that this rank sends.
          target: the memory that gets what it receives.
          factor: the factor of a premultiplied sum, in memory of the device.
        """
        me, size = call.comm.ranks.index(self.rank), len(call.comm.ranks)
        send, receive = (ctypes.c_void_p(x.data_ptr()) for x in (source, target))
        how: tuple[Any, ...] = (ctypes.c_size_t(call.count), TYPES[call.dtype])
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        end = (call.comm.handle, stream)
        if call.name == "ncclSend":
            self.nccl.call("ncclSend", send, *how, (me + 1) % size, *end)
            self.nccl.call("ncclRecv", receive, *how, (me - 1) % size, *end)
            return
        made = None
        if call.name in _REDUCES and call.op in _PREMULTIPLIED:
            on_device = call.op == "device factor"
            scalar = factor if on_device else self.factor(call, self.rank)
            made = self.nccl.premultiplied_sum(
                scalar.data_ptr(), call.dtype, call.comm.handle, on_device=on_device
            )
            how += (made,)
        elif call.name in _REDUCES:
            how += (SUMS[call.op],)
        if call.name in ("ncclReduce", "ncclBroadcast", "ncclGather", "ncclScatter"):
            how += (call.root,)
        self.nccl.call(call.name, send, receive, *how, *end)
        if made is not None:
            self.nccl.call("ncclRedOpDestroy", made, call.comm.handle)

    def buffers(self, call: _Call, *, in_place: bool) -> tuple[Any, Any]:
        """Returns memory for what this rank sends and for what it receives in a call."""
        torch, size = self.torch, len(call.comm.ranks)
        source = torch.empty_like(self.values(call, self.rank))
        if in_place and call.name in ("ncclAllReduce", "ncclReduce", "ncclBroadcast"):
            return source, source
        out = call.count * (size if call.name in _MANY_OUT else 1)
        target = torch.empty(out, dtype=source.dtype, device="cuda")
        if in_place and call.name == "ncclAllGather":
            me = call.comm.ranks.index(self.rank)
            source = target[me * call.count : (me + 1) * call.count]
        return source, target

    def batch(self, calls: list[_Call], *, in_place: bool, replays: int) -> None:
        """Makes the calls as one group and checks their results.

        Args:
          calls: the calls of all ranks.
          in_place: whether a call's input and output may be the same memory.
          replays: how often to replay a graph of the calls; 0: make the calls directly.
        """
        mine = [call for call in calls if self.rank in call.comm.ranks]
        memory = [self.buffers(call, in_place=in_place) for call in mine]
        factors = [self.factor(call, self.rank).cuda() for call in mine]

        def enqueue() -> None:
            with self.nccl.group():
                for call, (source, target), factor in zip(mine, memory, factors, strict=True):
                    self.enqueue(call, source, target, factor)
            for call in mine:
                self.nccl.wait(call.comm.handle)

        def fill() -> None:
            for call, (source, target), factor in zip(mine, memory, factors, strict=True):
                factor.copy_(self.factor(call, self.rank))
                if target is not source:
                    target.fill_(99)
                source.copy_(self.values(call, self.rank))

        if replays:
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(graph):
                enqueue()
            enqueue = graph.replay
        for turn in range(max(1, replays)):
            for call in mine:
                call.seed += turn
            fill()
            enqueue()
            self.compare(mine, memory)
        self.torch.cuda.synchronize()  # before a graph goes

    def compare(self, calls: list[_Call], memory: list[tuple[Any, Any]]) -> None:
        """Compares the results of the calls, and counts the wrong ones."""
        for call, (_, target) in zip(calls, memory, strict=True):
            self.calls += 1
            want = self.expected(call)
            if want is not None and not self.torch.equal(target, want):
                self.wrong += 1
                what = vars(call) | {"comm": call.comm.ranks}
                print(json.dumps({"rank": self.rank, "wrong": what}), flush=True)

    def parts(self, pick: random.Random) -> list[_Comm]:
        """Returns new communicators: one for each color of a split, sometimes one of a shrink."""
        colors = [pick.randrange(2) for _ in range(self.size)]
        keys = [pick.randrange(100) for _ in range(self.size)]
        blocking = pick.random() < 0.5
        assert self.world.handle is not None
        part = self.nccl.split(
            self.world.handle, colors[self.rank], keys[self.rank], blocking=blocking
        )
        made = []
        for color in sorted(set(colors)):
            ranks = [rank for rank in range(self.size) if colors[rank] == color]
            ranks.sort(key=lambda rank: (keys[rank], rank))
            made.append(_Comm(ranks, part if self.rank in ranks else None))
        if pick.random() < 0.3:
            without = pick.randrange(self.size)
            ranks = [rank for rank in range(self.size) if rank != without]
            if self.rank in ranks:
                self.torch.cuda.synchronize()  # the parent must be idle
                made.append(_Comm(ranks, self.nccl.shrink(self.world.handle, [without])))
            else:
                made.append(_Comm(ranks, None))
        return made

    def round(self, pick: random.Random, batches: int) -> None:
        """Makes communicators, makes batches of calls on them, and destroys them."""
        parts = self.parts(pick)
        for _ in range(batches):
            calls = []
            for _ in range(pick.choice((1, 1, 2, 4))):
                comm = pick.choice([self.world, *parts])
                leave_out = len(comm.ranks) == 1 and not _POOLS_FOR_ONE_RANK
                op = pick.choice([*SUMS, *(() if leave_out else _PREMULTIPLIED)])
                narrow = op == "prod"  # products of four values reach 625
                dtype = pick.choice(["int32", "int64", "float32"] if narrow else list(TYPES))
                count = round(2 ** pick.uniform(0, 20))
                root, seed = pick.randrange(len(comm.ranks)), pick.randrange(1000)
                calls.append(_Call(pick.choice(_CALLS), comm, dtype, count, op, root, seed))
            in_place = pick.random() < 0.3
            self.batch(calls, in_place=in_place, replays=pick.choice((0, 0, 0, 3)))
        for comm in parts:
            if comm.handle is not None:
                self.nccl.destroy(comm.handle)


def _process(rank: int, options: argparse.Namespace, parent: Connection) -> None:
    this = _Rank(rank, options.ranks, parent)
    with this.torch.cuda.stream(this.stream):
        begin, number = time.time(), 0
        while True:
            # Rank 0 decides whether there is another round, so that all ranks make the same rounds.
            go = this.torch.tensor([time.time() - begin < options.seconds], device="cuda").int()
            pointer = ctypes.c_void_p(go.data_ptr())
            how = (ctypes.c_size_t(1), TYPES["int32"], 0)
            stream = ctypes.c_void_p(this.stream.cuda_stream)
            this.nccl.call("ncclBroadcast", pointer, pointer, *how, this.world.handle, stream)
            if not int(go):
                break
            this.round(random.Random(options.seed + number), options.batches)
            number += 1
            if rank == 0:
                seconds = round(time.time() - begin, 1)
                line = {"round": number, "calls": this.calls, "seconds": seconds}
                print(json.dumps(line | {"wrong": this.wrong}), flush=True)
        assert this.world.handle is not None
        this.nccl.destroy(this.world.handle)
    parent.send((this.calls, this.wrong))


def main() -> None:
    """Starts a process for each rank; exits with 1 if one of them found a wrong value."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--batches", type=int, default=100, help="of each round")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    context = mp.get_context("spawn")
    pipes = []
    for rank in range(options.ranks):
        here, there = context.Pipe()
        context.Process(target=_process, args=(rank, options, there)).start()
        there.close()  # so that the end of the process is EOFError
        pipes.append(here)
    unique = pipes[0].recv_bytes()
    for pipe in pipes:
        pipe.send_bytes(unique)
    found = [pipe.recv() for pipe in pipes]
    print(json.dumps({"calls": [n for n, _ in found], "wrong": sum(n for _, n in found)}))
    sys.exit(any(n for _, n in found))


if __name__ == "__main__":
    main()
