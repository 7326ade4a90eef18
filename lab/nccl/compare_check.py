"""Checks JAX_CXL_NCCL_COMPARE on two GPUs: it finds each planted difference, and no other.

    python -m lab.nccl.compare_check

Runs the checks of lab.nccl.torch_check with every call compared. Then, for each function, a
library between jax_cxl's and NVIDIA's (planted.c) makes one element of NVIDIA's result on rank 1
wrong. Rank 1 has to get an error that names the call and the element, rank 0 an error in its next
call, and both GPUs have to compute after ncclCommAbort. Prints a line of JSON for each, and ends
with 1 if one is not as expected.

Needs PyTorch, NVIDIA's NCCL as a Python package, and gcc.
"""

import ctypes
import json
import multiprocessing as mp
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

from jax_cxl._nccl import library
from lab.nccl.nccl_functions import SUMS, TYPES, Library

_COUNT, _ELEMENT = 100_001, 77_777
# The function, the dtype, what the repeated call is for NVIDIA's library, and whether a graph has
# captured the call.
_PLANTED = (
    ("ncclAllReduce", "bfloat16", "ncclAllReduce", False),
    ("ncclAllReduce", "bfloat16", "ncclAllReduce", True),
    ("ncclReduceScatter", "int32", "ncclReduceScatter", False),
    ("ncclReduce", "int32", "ncclReduce", False),
    ("ncclAllGather", "int32", "ncclAllGather", False),
    ("ncclBroadcast", "int32", "ncclBroadcast", False),
    ("ncclAlltoAll", "int32", "ncclRecv", False),
    ("ncclSend", "int32", "ncclRecv", False),
)


def _call(nccl: Library, name: str, dtype: str, comm: ctypes.c_void_p, rank: int, x: Any) -> None:
    import torch

    source, to = (ctypes.c_void_p(each.data_ptr()) for each in x)
    size, stream = ctypes.c_size_t(_COUNT), torch.cuda.current_stream().cuda_stream
    end = (comm, ctypes.c_void_p(stream))
    if name == "ncclSend":
        with nccl.group():
            nccl.call("ncclSend", source, size, TYPES[dtype], 1 - rank, *end)
            nccl.call("ncclRecv", to, size, TYPES[dtype], 1 - rank, *end)
        return
    op = (SUMS["sum"],) if "Reduce" in name else ()
    root = (1,) if name in ("ncclReduce", "ncclBroadcast") else ()
    nccl.call(name, source, to, size, TYPES[dtype], *op, *root, *end)


def _rank(
    rank: int, name: str, dtype: str, captured: bool, others: Connection, say: Connection
) -> None:
    import torch

    torch.cuda.set_device(rank)
    nccl = Library()
    comm = nccl.meet(rank, others)
    kind = getattr(torch, dtype)
    # Input and output. NVIDIA's wrong byte is not that of any of these numbers.
    x = [torch.arange(2 * _COUNT, device="cuda").remainder(100).to(kind) for _ in range(2)]
    torch.cuda.synchronize()
    before = 0
    _call(nccl, name, dtype, comm, rank, x)
    if captured:  # Every second call is compared.
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            _call(nccl, name, dtype, comm, rank, x)
        time.sleep(0.1)
        before = nccl.async_error(comm)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        del graph  # NVIDIA's communicators do not end before their graphs.
    if rank == 0:  # Learns of the error in its next call, which rank 1 does not make.
        time.sleep(0.5)
        # In a reduce, only the root waits.
        waiting = "ncclAllReduce" if name == "ncclReduce" else name
        _call(nccl, waiting, dtype, comm, rank, x)
    began, error = time.time(), before
    while error == 0 and time.time() - began < 10:
        error = nccl.async_error(comm)
        time.sleep(0.001)
    text = nccl.last_error(comm)
    nccl.call("ncclCommAbort", comm)
    computes = float(torch.full((8,), 2.0, device="cuda").sum()) == 16.0
    say.send((rank, before, error, text, computes))
    os._exit(0)


def _planted(number: int) -> bool:
    """Runs one case of `_PLANTED` on two ranks; returns whether both had the error."""
    name, dtype, function, captured = _PLANTED[number]
    width = 2 if dtype == "bfloat16" else 4
    os.environ |= {
        "JAX_CXL_NCCL_COMPARE": "2" if captured else "1",
        "PLANTED_FUNCTION": function,
        "PLANTED_BYTE": str(width * _ELEMENT + width - 1),
    }
    os.environ |= library.environment("all", os.environ, one_gpu=True)
    context = mp.get_context("spawn")
    one, two = context.Pipe()
    says = [context.Pipe() for _ in range(2)]
    ranks = [
        context.Process(target=_rank, args=(rank, name, dtype, captured, end, says[rank][1]))
        for rank, end in enumerate((one, two))
    ]
    for rank in ranks:
        rank.start()
    said = [here.recv() if here.poll(90) else None for here, _ in says]
    for rank in ranks:
        rank.kill()
        rank.join()
    got = {rank[0]: rank for rank in said if rank}
    found = len(got) == 2 and all(
        error and computes and not before for _, before, error, _, computes in got.values()
    )
    wanted = f"call {2 if captured else 1}, {name}.*: element {_ELEMENT} on rank 1 is .* by NVIDIA"
    if name == "ncclSend":  # Moves of bytes.
        byte = 4 * _ELEMENT + 3
        wanted = rf"{name} of \d+ bytes from rank 0: element {byte} on rank 1"
    found = found and bool(re.search(wanted, got[1][3]))
    texts = [got[rank][3] if rank in got else None for rank in range(2)]
    print(json.dumps({"planted": name, "captured": captured, "found": found, "said": texts}))
    return found


def _build(folder: pathlib.Path, real: pathlib.Path) -> pathlib.Path:
    """Compiles planted.c. The functions that it does not have are those of `real`."""
    # NVIDIA's library has the name of jax_cxl's. So planted.c needs it by its path, which is the
    # name of an empty library here.
    empty, planted = folder / "libempty.so", folder / "libplanted.so"
    gcc = ["gcc", "-shared", "-fPIC", "-Wl,--no-as-needed"]
    subprocess.run([*gcc, f"-Wl,-soname,{real}", "-x", "c", "/dev/null", "-o", empty], check=True)
    source = pathlib.Path(__file__).with_name("planted.c")
    command = [*gcc, f'-DREAL="{real}"', source, empty, "-ldl", "-o", planted]
    subprocess.run(command, check=True)
    return planted


def _equal() -> bool:
    """Runs torch_check with every call compared; returns whether all is right."""
    environment = os.environ | library.environment("all") | {"JAX_CXL_NCCL_COMPARE": "1"}
    command = [sys.executable, "-m", "lab.nccl.torch_check", "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    counts = [int(n) for n in re.findall(r"(\d+) calls compared .* no difference", done.stderr)]
    differ = "by NVIDIA's library" in done.stderr
    right = done.returncode == 0 and not differ and sum(counts) > 0
    print(json.dumps({"torch_check": done.returncode, "compared": counts, "right": right}))
    if not right:
        print(done.stdout[-2000:], done.stderr[-4000:], sep="\n")
    return right


def main() -> None:
    real = library.real_path()
    if real is None:
        sys.exit("needs NVIDIA's NCCL as a Python package (nvidia-nccl-cu13)")
    right = _equal()
    with tempfile.TemporaryDirectory() as folder:
        planted = _build(pathlib.Path(folder), real)
        os.environ["JAX_CXL_NCCL_LIBRARY"] = str(planted)
        for number in range(len(_PLANTED)):
            right = _planted(number) and right
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
