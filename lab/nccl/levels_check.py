"""Checks collectives in levels between processes with several GPUs: values, graphs and faults.

    JAX_CXL_NCCL_HOSTS=processes JAX_CXL_NCCL_LEVELS=65536 LD_PRELOAD=.../_nccl/libnccl.so.2 \\
        python -m lab.nccl.levels_check --processes=2 --gpus=2

First, one thread of each process calls NCCL for all GPUs of the process, in groups. Then each GPU
has a thread of its own, which also captures a call in a CUDA graph and replays the graph three
times. Inputs are small integers, so that every result is exact. Prints a line of JSON for each
collective, and ends with 1 if a value was wrong. Then come three jobs with faults: a process is
killed, a process aborts its communicators, and the processes have different settings. Without
LD_PRELOAD only the values are checked, with NCCL itself.

Needs PyTorch, for memory of the GPUs.
"""

import argparse
import ctypes
import json
import multiprocessing as mp
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from lab.nccl.nccl_functions import SUMS, TYPES, Library, UniqueId

_OPS = SUMS | {"avg": 4}
_CALLS = [
    *(("ncclAllReduce", op) for op in ("sum", "max", "avg")),
    *(("ncclReduceScatter", op) for op in ("sum", "avg")),
    *(("ncclAllGather", ""), ("ncclBroadcast", "")),
]
_LARGEST = 4_500_001  # more than the memory for parts of blocks of float32 holds
_COUNTS = (1000, 16384, 100_003, 1_000_000, _LARGEST)
_FAULTS = ("killed", "aborts", "settings differ")


class _Ranks:
    """The ranks of one process, one for each of its GPUs."""

    def __init__(self, process: int, processes: int, gpus: int, unique: bytes) -> None:
        import torch

        self._torch = torch
        self.nccl = Library()
        self.size = processes * gpus
        self.ranks = range(process * gpus, (process + 1) * gpus)
        self.comms = {rank: ctypes.c_void_p() for rank in self.ranks}
        with self.nccl.group():
            for rank, comm in self.comms.items():
                torch.cuda.set_device(rank)
                place = (self.size, UniqueId.from_buffer_copy(unique), rank)
                self.nccl.call("ncclCommInitRank", ctypes.byref(comm), *place)

    def inputs(self, call: str, count: int, dtype: str) -> list[Any]:
        """Returns the inputs of a call for all ranks of the job, on the CPU."""
        each = count * (self.size if call == "ncclReduceScatter" else 1)
        index = self._torch.arange(each)
        return [
            ((index * 7 + rank * 5) % 3 + 1).to(getattr(self._torch, dtype))
            for rank in range(self.size)
        ]

    def expected(self, call: str, op: str, rank: int, inputs: list[Any]) -> Any:
        """Returns the right output of a call for a rank, given the inputs of all ranks."""
        if call == "ncclAllGather":
            return self._torch.cat(inputs)
        if call == "ncclBroadcast":
            return inputs[self.size - 1]
        stacked = self._torch.stack(inputs).double()
        reduced = stacked.amax(0) if op == "max" else stacked.sum(0)
        if op == "avg":
            reduced /= self.size
        reduced = reduced.to(inputs[0].dtype)
        return reduced if call == "ncclAllReduce" else reduced.chunk(self.size)[rank]

    def start(self, call: str, op: str, rank: int, x: Any, y: Any, count: int) -> None:
        """Calls NCCL's function `call` for a rank, on the current stream of its GPU."""
        stream = ctypes.c_void_p(self._torch.cuda.current_stream(rank).cuda_stream)
        dtype = TYPES[str(x.dtype).removeprefix("torch.")]
        extra = [_OPS[op]] if op else [self.size - 1] if call == "ncclBroadcast" else []
        pointers = (ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()))
        comm = self.comms[rank]
        self.nccl.call(call, *pointers, ctypes.c_size_t(count), dtype, *extra, comm, stream)

    def buffers(self, call: str, rank: int, count: int, inputs: list[Any], place: bool) -> Any:
        """Returns input and output of a rank on its GPU. With `place`, they are one buffer."""
        blocks = self.size if call == "ncclAllGather" else 1
        x = inputs[rank].to(f"cuda:{rank}")
        y = self._torch.zeros(blocks * count, dtype=x.dtype, device=x.device)
        if not place:
            return x, y
        if call == "ncclReduceScatter":
            return x, x[rank * count : (rank + 1) * count]
        mine = y[rank * count : (rank + 1) * count] if blocks > 1 else y
        mine.copy_(x)
        return mine, y

    def by_one_thread(self, call: str, op: str, dtype: str, count: int) -> int:
        """Makes a call for all ranks of this process in one NCCL group, out of place and in place.

        Returns:
          The number of wrong elements.
        """
        wrong = 0
        inputs = self.inputs(call, count, dtype)
        for place in (False, True):
            pairs = {r: self.buffers(call, r, count, inputs, place) for r in self.ranks}
            for rank in self.ranks:
                self._torch.cuda.synchronize(rank)
            with self.nccl.group():
                for rank, (x, y) in pairs.items():
                    self._torch.cuda.set_device(rank)
                    self.start(call, op, rank, x, y, count)
            for rank, (_, y) in pairs.items():
                wrong += int((y.cpu() != self.expected(call, op, rank, inputs)).sum())
        return wrong

    def by_threads(self, call: str, op: str, dtype: str, count: int) -> int:
        """Makes calls for each rank in a thread of its own; returns the number of wrong elements.

        Each thread makes a call directly, then replays a graph of the same call, then makes one
        more call directly.
        """
        inputs = self.inputs(call, count, dtype)
        wrong = dict.fromkeys(self.ranks, -1)
        pairs = {r: self.buffers(call, r, count, inputs, False) for r in self.ranks}
        for rank in self.ranks:
            self._torch.cuda.synchronize(rank)

        def run(rank: int) -> None:
            x, y = pairs[rank]
            expected = self.expected(call, op, rank, inputs)
            self._torch.cuda.set_device(rank)
            with self._torch.cuda.stream(self._torch.cuda.Stream(rank)):
                self.start(call, op, rank, x, y, count)
                bad = int((y.cpu() != expected).sum())
                graph = self._torch.cuda.CUDAGraph()
                graph.capture_begin(capture_error_mode="thread_local")
                self.start(call, op, rank, x, y, count)
                graph.capture_end()
                for _ in range(3):
                    y.zero_()
                    graph.replay()
                    bad += int((y.cpu() != expected).sum())
                self.start(call, op, rank, x, y, count)
                wrong[rank] = bad + int((y.cpu() != expected).sum())

        threads = [threading.Thread(target=run, args=(rank,)) for rank in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(wrong.values()) if min(wrong.values()) >= 0 else -1

    def hang(self) -> None:
        """Starts a call that the other processes do not make, so it cannot finish."""
        pairs = {r: self._torch.ones(1 << 24, device=f"cuda:{r}") for r in self.ranks}
        with self.nccl.group():
            for rank, x in pairs.items():
                self._torch.cuda.set_device(rank)
                self.start("ncclAllReduce", "sum", rank, x, x, 1 << 24)

    def abort(self) -> None:
        for comm in self.comms.values():
            self.nccl.call("ncclCommAbort", comm)


def _values(ranks: _Ranks, say: Connection) -> None:
    checks: tuple[Callable[..., int], ...] = (ranks.by_one_thread, ranks.by_threads)
    for check in checks:
        for call, op in _CALLS:
            wrong = {}
            for count in _COUNTS:
                some = op == "avg" or count == _LARGEST
                for dtype in ("float32",) if some else ("float32", "int32", "bfloat16"):
                    wrong[f"{count} {dtype}"] = check(call, op, dtype, count)
            bad = {name: number for name, number in wrong.items() if number}
            say.send({"how": check.__name__, "call": call, "op": op, "wrong": bad})
    for rank, comm in ranks.comms.items():
        error = ranks.nccl.async_error(comm)
        if error:
            say.send({"rank": rank, "wrong": {"error": error}})
        ranks.nccl.call("ncclCommDestroy", comm)


def _fault(ranks: _Ranks, process: int, fault: str, say: Connection) -> None:
    import torch

    if process == 1:
        time.sleep(1)
        if fault == "killed":
            os.kill(os.getpid(), 9)
        ranks.abort()
        time.sleep(10)
        return
    ranks.hang()
    begin = time.time()
    seen: dict[int, Any] = {}
    while len(seen) < len(ranks.comms) and time.time() - begin < 20:
        for rank, comm in ranks.comms.items():
            if rank not in seen and ranks.nccl.async_error(comm):
                text = ranks.nccl.last_error(comm)
                seen[rank] = [round(time.time() - begin, 3), text]
        time.sleep(0.001)
    begin = time.time()
    ranks.abort()
    aborted = round(time.time() - begin, 3)
    computes = all(float(torch.ones(8, device=f"cuda:{r}").sum()) == 8 for r in ranks.ranks)
    say.send({"fault": fault, "errors": seen, "abort_s": aborted, "gpu_computes": computes})


def _process(
    process: int, processes: int, gpus: int, unique: bytes, fault: str, say: Connection
) -> None:
    if fault == "settings differ":
        os.environ["JAX_CXL_NCCL_LEVELS"] = str(65536 + process)
    try:
        ranks = _Ranks(process, processes, gpus, unique)
    except RuntimeError as error:
        say.send({"fault": fault, "error": str(error)})
        return
    if fault:
        _fault(ranks, process, fault, say)
    else:
        _values(ranks, say)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=2, help="of each process")
    arguments = parser.parse_args()
    context = mp.get_context("spawn")
    failed = False
    preloaded = "JAX_CXL_NCCL_HOSTS" in os.environ
    for fault in ("", *(_FAULTS if preloaded else ())):
        unique = Library().unique_id()
        here, there = context.Pipe(duplex=False)
        job = (arguments.processes, arguments.gpus, unique, fault, there)
        processes = [
            context.Process(target=_process, args=(process, *job))
            for process in range(arguments.processes)
        ]
        for process in processes:
            process.start()
        there.close()
        limit = time.time() + (60 if fault else 400)
        try:
            while here.poll(max(0.0, limit - time.time())):
                line = here.recv()
                failed |= bool(line.get("wrong"))
                print(json.dumps(line), flush=True)
        except EOFError:
            pass
        else:
            failed = True
            print(json.dumps({"fault": fault, "wrong": "the job hangs"}), flush=True)
        for process in processes:
            process.kill()
            process.join()
            failed |= not fault and process.exitcode != 0
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
