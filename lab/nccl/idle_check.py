"""What five communicators of the same two ranks take before and after their first calls.

    unshare -m sh -c 'mount -t tmpfs -o size=300m shm /dev/shm
        exec python -m jax_cxl run --nccl torchrun --nproc-per-node=2 -m lab.nccl.idle_check'

Needs PyTorch and root. The first calls are a sum, a send, two calls of a captured graph, and a call
while a kernel of another communicator waits for a rank that is late. Prints lines of JSON, and ends
with 1 if a value was wrong.
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
        return torch.full((_COUNT,), factor, device="cuda")

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
        dist.all_gather_into_tensor(gathered, total, group=groups[3])
    this.say("a capture")
    for turn in range(3):
        total.fill_(rank + turn)
        graph.replay()
        this.expect("graph", gathered, 1 + 2 * turn)
    this.say("a graph")

    # Rank 0 waits in a kernel of the first communicator when it makes the first call of the last.
    early, late = ones(rank + 1), ones(rank + 2)
    this.meet()
    if rank == 1:
        time.sleep(_LATE_S)
    first = dist.all_reduce(early, group=groups[0], async_op=True)
    begin = time.perf_counter()
    second = dist.all_reduce(late, group=groups[4], async_op=True)
    seconds = round(time.perf_counter() - begin, 3)
    first.wait()
    second.wait()
    this.expect("early", early, 3)
    this.expect("late", late, 5)
    this.say("a call beside a kernel that waits", seconds=seconds)
    dist.destroy_process_group()
    return 1 if this.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
