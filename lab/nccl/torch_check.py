"""Checks and times PyTorch's collectives on two GPUs or more, one process for each GPU.

    python -m lab.nccl.torch_check --check --time              NCCL itself
    JAX_CXL_NCCL_HOSTS=all LD_PRELOAD=.../_nccl/libnccl.so.2 \\
        python -m lab.nccl.torch_check --check --time          through the pool

Needs PyTorch. Prints a line of JSON for each result, and ends with 1 if a value was wrong. Inputs
are small integers, so that every sum is exact.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COUNTS = (1, 7, 1000, 16384, 65537, 300001, 4 << 20)
_TIMED = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)


class Rank:
    """One rank's part of the checks. `wrong` counts results that are not as expected."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.wrong = 0

    def say(self, **what: object) -> None:
        if self.rank == 0:
            print(json.dumps(what), flush=True)

    def expect(self, name: str, got: torch.Tensor, want: torch.Tensor) -> None:
        if not torch.equal(got, want):
            self.wrong += 1
            bad = int((got != want).sum())
            print(json.dumps({"rank": self.rank, "wrong": name, "elements": bad}), flush=True)

    def data(self, rank: int, count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
        index = torch.arange(count, device="cuda")
        return ((index + 3 * rank + seed) % 5 + 1).to(dtype)

    def all(self, count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
        return torch.stack([self.data(r, count, dtype, seed) for r in range(self.size)])


def _fold(values: torch.Tensor, op: str) -> torch.Tensor:
    wide = values.double() if values.is_floating_point() else values.long()
    folded = {
        "sum": lambda: wide.sum(0),
        "product": lambda: wide.prod(0),
        "max": lambda: wide.max(0).values,
        "min": lambda: wide.min(0).values,
        "avg": lambda: wide.sum(0) / len(wide),
    }[op]()
    return folded.to(values.dtype)


def check_reductions(this: Rank) -> None:
    ops = {name: getattr(dist.ReduceOp, name.upper()) for name in ("sum", "product", "max", "min")}
    for dtype in _INTEGERS + _FLOATS:
        floating = dtype in _FLOATS
        for name, op in (ops | ({"avg": dist.ReduceOp.AVG} if floating else {})).items():
            for count in _COUNTS if dtype in (torch.float32, torch.bfloat16) else (1000, 65537):
                mine = this.data(this.rank, count, dtype)
                dist.all_reduce(mine, op)
                this.expect(
                    f"all_reduce {name} {dtype} {count}", mine, _fold(this.all(count, dtype), name)
                )
                whole = this.data(this.rank, count * this.size, dtype)
                part = torch.empty(count, dtype=dtype, device="cuda")
                dist.reduce_scatter_tensor(part, whole, op)
                want = _fold(this.all(count * this.size, dtype), name).chunk(this.size)[this.rank]
                this.expect(f"reduce_scatter {name} {dtype} {count}", part, want)
                mine = this.data(this.rank, count, dtype)
                dist.reduce(mine, 1, op)
                if this.rank == 1:
                    this.expect(
                        f"reduce {name} {dtype} {count}", mine, _fold(this.all(count, dtype), name)
                    )


def check_premultiplied(this: Rank) -> None:
    """Checks premultiplied sums, directly and in a graph. Each rank has a factor of its own."""
    make = dist._make_nccl_premul_sum
    # Not bfloat16: PyTorch passes a factor for bfloat16 as float32, and NCCL reads only two of its
    # bytes.
    for dtype in (torch.float16, torch.float32, torch.float64):
        factors = [torch.tensor([0.5 * (r + 1)], dtype=dtype) for r in range(this.size)]
        mine = factors[this.rank]
        scale = torch.stack(factors).cuda()
        for name, op in (("number", make(float(mine))), ("tensor", make(mine.cuda()))):
            for count in (1, 1000, 65537, 300001):
                value = this.data(this.rank, count, dtype)
                dist.all_reduce(value, op)
                want = _fold(scale * this.all(count, dtype), "sum")
                this.expect(f"all_reduce by a {name} {dtype} {count}", value, want)
                value = this.data(this.rank, count, dtype)
                dist.reduce(value, 1, op)
                if this.rank == 1:
                    this.expect(f"reduce by a {name} {dtype} {count}", value, want)
                whole = this.data(this.rank, count * this.size, dtype)
                part = whole.chunk(this.size)[this.rank]  # in place
                dist.reduce_scatter_tensor(part, whole, op)
                want = _fold(scale * this.all(count * this.size, dtype), "sum")
                want = want.chunk(this.size)[this.rank]
                this.expect(f"reduce_scatter by a {name} {dtype} {count}", part, want)
    factor = torch.ones(1, device="cuda")
    value = torch.empty(5000, device="cuda")
    op = make(factor)
    dist.all_reduce(value.zero_(), op)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(value, op)
    for turn in range(10):
        factor.fill_(turn - 0.5 * this.rank)
        value.copy_(this.data(this.rank, 5000, torch.float32, turn))
        graph.replay()
        scale = torch.tensor([[turn - 0.5 * r] for r in range(this.size)], device="cuda")
        want = _fold(scale * this.all(5000, torch.float32, turn), "sum")
        this.expect("premultiplied all_reduce of a graph", value, want)


def check_moves(this: Rank) -> None:
    size, rank = this.size, this.rank
    for count in _COUNTS:
        for dtype in (torch.uint8, torch.float32):
            mine, every = this.data(rank, count, dtype), this.all(count, dtype)
            gathered = torch.empty(size * count, dtype=dtype, device="cuda")
            dist.all_gather_into_tensor(gathered, mine)
            this.expect(f"all_gather {dtype} {count}", gathered, every.flatten())
            whole = this.data(rank, count * size, dtype)
            out = torch.empty_like(whole)
            dist.all_to_all_single(out, whole)
            blocks = [this.data(r, count * size, dtype).chunk(size)[rank] for r in range(size)]
            this.expect(f"all_to_all {dtype} {count}", out, torch.cat(blocks))
            value = mine.clone()
            dist.broadcast(value, 1)
            this.expect(f"broadcast {dtype} {count}", value, every[1])
            parts = [torch.empty_like(mine) for _ in range(size)] if rank == 0 else None
            dist.gather(mine, parts, 0)
            if parts:
                this.expect(f"gather {dtype} {count}", torch.stack(parts), every)
            part = torch.empty_like(mine)
            dist.scatter(part, list(every) if rank == 1 else None, 1)
            this.expect(f"scatter {dtype} {count}", part, every[rank])
            after, before = (rank + 1) % size, (rank - 1) % size
            got = torch.empty_like(mine)
            calls = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, got, before)]
            for work in dist.batch_isend_irecv(calls if rank % 2 else calls[::-1]):
                work.wait()
            this.expect(f"ring {dtype} {count}", got, every[before])
            if rank < 2:
                (dist.send if rank == 0 else dist.recv)(value if rank == 0 else got, 1 - rank)
                this.expect(f"recv {dtype} {count}", value if rank == 0 else got, every[1])


def check_groups(this: Rank) -> None:
    pair = dist.new_group([0, 1])
    value = this.data(this.rank, 5000, torch.float32)
    if this.rank < 2:
        dist.all_reduce(value, group=pair)
        want = _fold(this.all(5000, torch.float32)[:2], "sum")
        this.expect("all_reduce of a group", value, want)
    dist.barrier()


def check_graphs(this: Rank) -> None:
    """Replays a graph of several collectives, and makes calls outside of the graph in between."""
    for count in (256, 4096, 1 << 20):
        static = torch.empty(count, device="cuda")
        gathered = torch.empty(this.size * count, device="cuda")
        moved = torch.empty_like(gathered)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # opens the channels
            dist.all_reduce(static.zero_())
            dist.all_gather_into_tensor(gathered, static)
            dist.all_to_all_single(moved, gathered)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(static)
            static += 1
            dist.all_gather_into_tensor(gathered, static)
            gathered.mul_(this.rank + 1)
            dist.all_to_all_single(moved, gathered)
        loose = torch.empty(3 * count, device="cuda")
        for turn in range(30):
            static.copy_(this.data(this.rank, count, torch.float32, turn))
            graph.replay()
            loose.copy_(this.data(this.rank, 3 * count, torch.float32, turn))
            if turn % 3:
                dist.all_reduce(loose)
            total = _fold(this.all(count, torch.float32, turn), "sum") + 1
            this.expect(f"graph all_reduce {count}", static, total)
            block = total.repeat(this.size).chunk(this.size)[this.rank]
            want = torch.cat([block * (r + 1) for r in range(this.size)])
            this.expect(f"graph all_to_all {count}", moved, want)
            if turn % 3:
                this.expect(
                    f"beside a graph {count}",
                    loose,
                    _fold(this.all(3 * count, torch.float32, turn), "sum"),
                )


def _median_us(call: Callable[[], object], turns: int, calls: int) -> float:
    times = []
    for _ in range(turns + 1):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return sorted(times[1:])[turns // 2]


def time_calls(this: Rank) -> None:
    for nbytes in _TIMED:
        count = nbytes // 4
        whole = torch.ones(count, device="cuda")
        out = torch.empty_like(whole)
        part = torch.ones(count // this.size, device="cuda")
        calls = {
            "all_reduce": lambda whole=whole: dist.all_reduce(whole, dist.ReduceOp.MAX),
            "all_gather": lambda out=out, part=part: dist.all_gather_into_tensor(out, part),
            "reduce_scatter": lambda part=part, whole=whole: dist.reduce_scatter_tensor(
                part, whole
            ),
            "all_to_all": lambda out=out, whole=whole: dist.all_to_all_single(out, whole),
        }
        repeat = 50 if nbytes < 4 << 20 else 10 if nbytes < 64 << 20 else 3
        for name, call in calls.items():
            us = _median_us(call, 5, repeat)
            this.say(call=name, bytes=nbytes, us=round(us, 1))


def time_decode(this: Rank) -> None:
    """Times a captured graph like a decoder's step: 32 layers with two all-reduces each."""
    for nbytes in (16 << 10, 128 << 10, 1 << 20):
        value = torch.zeros(nbytes // 2, dtype=torch.bfloat16, device="cuda")
        dist.all_reduce(value)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(64):
                dist.all_reduce(value)
        us = _median_us(graph.replay, 5, 5)
        this.say(call="decode step of 64 all_reduce", bytes=nbytes, us=round(us, 1))


def _main(rank: int, size: int, place: str, arguments: argparse.Namespace) -> None:
    torch.cuda.set_device(rank)
    begin = time.perf_counter()
    dist.init_process_group("nccl", init_method=f"file://{place}", rank=rank, world_size=size)
    dist.barrier()
    this = Rank(rank, size)
    this.say(started_s=round(time.perf_counter() - begin, 2))
    if arguments.check:
        checks = (check_moves, check_reductions, check_premultiplied, check_groups, check_graphs)
        for check in checks:
            check(this)
            this.say(checked=check.__name__, wrong=this.wrong)
    if arguments.time:
        time_calls(this)
        time_decode(this)
    dist.destroy_process_group()
    if this.wrong:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    with tempfile.TemporaryDirectory() as folder:
        place = str(pathlib.Path(folder) / "meeting")
        mp.spawn(_main, (arguments.ranks, place, arguments), arguments.ranks)


if __name__ == "__main__":
    main()
