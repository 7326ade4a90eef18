"""Causes faults of communicators on two GPUs, and measures how soon the other rank gets an error.

    JAX_CXL_NCCL_HOSTS=all LD_PRELOAD=.../_nccl/libnccl.so.2 python -m lab.nccl.faults

Calls NCCL's functions directly, but needs PyTorch for memory of the GPU. Each fault is a job of two
processes. Prints for each fault the seconds from the fault until ncclCommGetAsyncError returns an
error, the text of ncclGetLastError, the seconds that ncclCommAbort takes, and whether the GPU
computes afterwards.
"""

import ctypes
import json
import multiprocessing as mp
import os
import time
from multiprocessing.connection import Connection

from lab.nccl.nccl_functions import SUMS, TYPES, Library


def _rank(rank: int, fault: str, others: Connection, say: Connection) -> None:
    import torch

    torch.cuda.set_device(rank)
    nccl = Library()
    x = torch.ones(1 << 20, device="cuda")
    comm = nccl.meet(rank, others)

    def all_reduce(count: int) -> None:
        pointer = ctypes.c_void_p(x.data_ptr())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        how = (ctypes.c_size_t(count), TYPES["float32"], SUMS["sum"])
        nccl.call("ncclAllReduce", pointer, pointer, *how, comm, stream)

    all_reduce(1 << 20)
    torch.cuda.synchronize()
    assert float(x[0]) == 2.0
    if rank == 1 and fault == "killed":
        others.send(time.time())
        os.kill(os.getpid(), 9)
    if rank == 1 and fault == "aborts":
        others.send(time.time())
        nccl.call("ncclCommAbort", comm)
        time.sleep(8)
        os._exit(0)
    all_reduce(1000 if rank == 1 and fault == "other count" else 999)
    if rank == 1:
        others.send(time.time())
    began = others.recv() if rank == 0 else time.time()
    error = 0
    while error == 0 and time.time() - began < 20:
        error = nccl.async_error(comm)
        time.sleep(0.001)
    seen = time.time() - began
    text = nccl.last_error(comm)
    begin = time.time()
    nccl.call("ncclCommAbort", comm)
    aborted = time.time() - begin
    computes = float(torch.full((8,), 2.0, device="cuda").sum()) == 16.0
    if rank == 0:
        say.send([seen, error, text, aborted, computes])
    os._exit(0)


def main() -> None:
    context = mp.get_context("spawn")
    for fault in ("killed", "aborts", "other count"):
        one, two = context.Pipe()
        here, there = context.Pipe()
        ranks = [
            context.Process(target=_rank, args=(rank, fault, end, there))
            for rank, end in enumerate((one, two))
        ]
        for rank in ranks:
            rank.start()
        if here.poll(60):
            seen, error, text, aborted, computes = here.recv()
            line = {
                "fault": fault,
                "seconds": round(seen, 3),
                "result": error,
                "abort_s": round(aborted, 3),
                "gpu_computes": computes,
                "text": text,
            }
        else:
            line = {"fault": fault, "seconds": None}
        print(json.dumps(line), flush=True)
        for rank in ranks:
            rank.kill()
            rank.join()


if __name__ == "__main__":
    main()
