"""Trains a decoder of about a billion parameters with PyTorch's FSDP, one process for each GPU.

    python benchmarks/nccl/torch_fsdp.py --json FILE

The model is like Llama's: RMSNorm, rotary positions, SwiGLU. Each layer is a unit of FSDP, in
bfloat16, with sums of gradients in float32. The script trains in three ways, which take turns:
`nccl` is NCCL with NCCL_P2P_DISABLE=1, `copies` is the same by copy engines, and `pool` is the
libnccl.so.2 of this package with JAX_CXL_NCCL_HOSTS=all. Rows of JSON have the time of a step,
tokens per second, the peak memory, and the losses.

Needs PyTorch.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from jax_cxl._nccl.report import ways

_VOCABULARY = 32000


def _model(width: int, layers: int, heads: int) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            q, k, v = self.qkv(x).view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            half = q.shape[-1] // 2
            frequencies = 10000.0 ** (-torch.arange(half, device=x.device) / half)
            angles = torch.arange(length, device=x.device)[:, None] * frequencies
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

            def rotated(y: Any) -> Any:
                a, b = y[..., :half], y[..., half:]
                return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

            y = functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(batch, length, width))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden = (8 * width // 3 + 255) // 256 * 256
            self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
            self.attention = Attention()
            self.gate_and_up = nn.Linear(width, 2 * hidden, bias=False)
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.before(x))
            gate, up = self.gate_and_up(self.between(x)).chunk(2, -1)
            return x + self.down(functional.silu(gate) * up)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(_VOCABULARY, width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = nn.RMSNorm(width)
            self.head = nn.Linear(width, _VOCABULARY, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    return Decoder()


def _train(rank: int, place: str, options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn import functional

    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{place}", rank=rank, world_size=options.ranks
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = _model(options.width, options.layers, options.heads)
    parameters = sum(p.numel() for p in model.parameters())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    draw = torch.Generator("cuda").manual_seed(rank)
    shape = options.batch, options.length + 1
    losses, times = [], []
    for step in range(options.steps + 3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        tokens = torch.randint(_VOCABULARY, shape, device="cuda", generator=draw)
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
        if step >= 3:
            times.append(time.perf_counter() - begin)
    if rank == 0:
        seconds = statistics.median(times)
        tokens_of_step = options.ranks * options.batch * options.length
        row = {
            "parameters": parameters,
            "step_ms": round(1e3 * seconds, 1),
            "range_ms": [round(1e3 * t, 1) for t in (min(times), max(times))],
            "tokens_per_s": round(tokens_of_step / seconds),
            "peak_mib": torch.cuda.max_memory_allocated() >> 20,
            "losses": losses,
        }
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def _run(way: str, variables: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    process = subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--one"],
        env=variables | {"CUDA_MODULE_LOADING": "EAGER"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its ranks can be killed with it
    )
    try:
        output, error = process.communicate(timeout=options.limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"way": way, "error": f"did not end within {options.limit:g} s"}
    rows = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not rows:
        return {"way": way, "error": error[-2000:]}
    return {"way": way} | json.loads(rows[-1])


def main() -> None:
    """Runs the ways in turn, several times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=17)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank in a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=15, help="measured steps, after 3 others")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--compare", type=int, help="value of JAX_CXL_NCCL_COMPARE (none)")
    parser.add_argument("--limit", type=float, default=300, help="seconds of one way in a turn")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        import torch.multiprocessing as mp

        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_train, (str(pathlib.Path(folder) / "meeting"), options), options.ranks)
        return
    environments = ways.environments(os.environ)
    if options.compare:
        environments["pool"]["JAX_CXL_NCCL_COMPARE"] = str(options.compare)
    rows = []
    for _ in range(options.turns):
        for way, variables in environments.items():
            rows.append(_run(way, variables, options))
            print(json.dumps(rows[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
