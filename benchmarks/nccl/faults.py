"""Faults of communicators on two GPUs, by NCCL's own functions: how soon the other rank knows.

    JAX_CXL_NCCL_HOSTS=all LD_PRELOAD=.../_nccl/libnccl.so.2 python benchmarks/nccl/faults.py

Needs PyTorch, for memory of the GPU. Each fault is a job of two processes. Prints for each fault
the seconds from the fault until ncclCommGetAsyncError returns an error, the text of
ncclGetLastError, the seconds that ncclCommAbort takes, and whether the GPU computes afterwards.
"""

import ctypes
import json
import multiprocessing as mp
import os
import time
from multiprocessing.connection import Connection

_FLOAT32, _SUM = 7, 0


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


def _rank(rank: int, fault: str, others: Connection, say: Connection) -> None:
    import torch

    torch.cuda.set_device(rank)
    nccl = ctypes.CDLL("libnccl.so.2")
    nccl.ncclCommInitRank.argtypes = (
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int,
        _UniqueId,
        ctypes.c_int,
    )
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    nccl.ncclGetLastError.argtypes = (ctypes.c_void_p,)
    x = torch.ones(1 << 20, device="cuda")
    unique = _UniqueId()
    if rank == 0:
        assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
        others.send_bytes(bytes(unique))
    else:
        unique = _UniqueId.from_buffer_copy(others.recv_bytes())
    comm = ctypes.c_void_p()
    result = nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique, rank)
    assert result == 0, nccl.ncclGetLastError(None)

    def all_reduce(count: int) -> int:
        pointer = ctypes.c_void_p(x.data_ptr())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        n = ctypes.c_size_t(count)
        return int(nccl.ncclAllReduce(pointer, pointer, n, _FLOAT32, _SUM, comm, stream))

    assert all_reduce(1 << 20) == 0
    torch.cuda.synchronize()
    assert float(x[0]) == 2.0
    if rank == 1 and fault == "killed":
        others.send(time.time())
        os.kill(os.getpid(), 9)
    if rank == 1 and fault == "aborts":
        others.send(time.time())
        nccl.ncclCommAbort(comm)
        time.sleep(8)
        os._exit(0)
    assert all_reduce(1000 if rank == 1 and fault == "other count" else 999) == 0
    if rank == 1:
        others.send(time.time())
    began = others.recv() if rank == 0 else time.time()
    error = ctypes.c_int()
    while error.value == 0 and time.time() - began < 20:
        nccl.ncclCommGetAsyncError(comm, ctypes.byref(error))
        time.sleep(0.001)
    seen = time.time() - began
    text = nccl.ncclGetLastError(comm).decode()
    begin = time.time()
    nccl.ncclCommAbort(comm)
    aborted = time.time() - begin
    computes = float(torch.full((8,), 2.0, device="cuda").sum()) == 16.0
    if rank == 0:
        say.send([seen, error.value, text, aborted, computes])
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
