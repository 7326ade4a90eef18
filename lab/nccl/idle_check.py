"""What five communicators of the same two ranks take before and after their first calls.

    unshare -m sh -c 'mount -t tmpfs -o size=300m shm /dev/shm
        exec python -m jax_cxl run --nccl torchrun --nproc-per-node=2 -m lab.nccl.idle_check'

Needs PyTorch and root. The first calls are a sum, a send, calls of a captured graph, and calls
while a kernel of the first communicator waits for a rank that is late. Prints lines of JSON, and
ends with 1 if a value was wrong.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

_COUNT = 1 << 20
_LATE_S = 3.0


class _Check:
    def __init__(self) -> None:
        self.rank = int(os.environ["LOCAL_RANK"])
        self.wrong = 0
        torch.cuda.set_device(self.rank)
        # With a device, PyTorch makes each communicator at once.
        dist.init_process_group("nccl", device_id=torch.device("cuda", self.rank))
        self.hosts = dist.new_group(backend="gloo")

    def meet(self) -> None:
        torch.cuda.synchronize()
        dist.barrier(self.hosts)

    def say(self, what: str, **more: object) -> None:
        self.meet()
        space = os.statvfs("/dev/shm")
        taken = (space.f_blocks - space.f_bfree) * space.f_frsize / 2**20
        free = torch.cuda.mem_get_info()[0] / 2**20
        line = {"rank": self.rank, "after": what, "shm_mib": round(taken, 2), "gpu_free_mib": free}
        print(json.dumps(line | more), flush=True)
        self.meet()

    def expect(self, what: str, got: torch.Tensor, want: float) -> None:
        if not bool((got == want).all()):
            self.wrong += 1
            print(json.dumps({"rank": self.rank, "wrong": what}), flush=True)


def main() -> int:
    this = _Check()
    rank = this.rank
    this.say("world")
    groups = [dist.group.WORLD]
    for _ in range(4):
        begin = time.perf_counter()
        groups.append(dist.new_group([0, 1]))
        this.say("a group", seconds=round(time.perf_counter() - begin, 3))

    def ones(factor: float = 1) -> torch.Tensor:
        return torch.full((_COUNT,), float(factor), device="cuda")

    value = ones(rank + 1)
    begin = time.perf_counter()
    dist.all_reduce(value, group=groups[0])
    seconds = round(time.perf_counter() - begin, 3)
    this.expect("all_reduce", value, 3)
    this.say("a sum", seconds=seconds)

    value = ones(rank + 5)
    if rank == 0:
        dist.send(value, 1, group=groups[1])
    else:
        dist.recv(value, 0, group=groups[1])
    this.expect("send", value, 5)
    this.say("a send")

    total, gathered = ones(), torch.empty(2 * _COUNT, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(total, group=groups[2])
        dist.all_gather_into_tensor(gathered, total, group=groups[2])
    this.say("a capture")
    for turn in range(3):
        total.fill_(rank + turn)
        graph.replay()
        this.expect("graph", gathered, 1 + 2 * turn)
    this.say("a graph")

    # Rank 0 waits in a kernel of the first communicator when it makes another one's first call. The
    # late rank makes both calls in the same order, and in the other one.
    for group, swapped in ((groups[3], False), (groups[4], True)):
        values = [ones(rank + 1), ones(rank + 2)]
        order = [(values[0], groups[0]), (values[1], group)]
        this.meet()
        if rank == 1:
            time.sleep(_LATE_S)
            order = order[::-1] if swapped else order
        works = [dist.all_reduce(order[0][0], group=order[0][1], async_op=True)]
        begin = time.perf_counter()
        works.append(dist.all_reduce(order[1][0], group=order[1][1], async_op=True))
        seconds = round(time.perf_counter() - begin, 3)
        for work in works:
            work.wait()
        this.expect("a kernel that waited", values[0], 3)
        this.expect("a first call beside it", values[1], 5)
        this.say("a call beside a kernel that waits", swapped=swapped, seconds=seconds)
    dist.destroy_process_group()
    return 1 if this.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
