"""The stages of the suite that measure times."""

import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from lab.gpu.process import Record, StageError, Suite

_OPS = "all_gather,psum,psum_scatter,all_to_all,broadcast,reduce,gather,scatter"
# NCCL prefers NVLink or PCIe between peers, then host memory, and then the network. Each of these
# environments turns off what NCCL would prefer to the way that is measured.
_WAYS_OF_NCCL = {
    "nccl-shm": {"NCCL_P2P_DISABLE": "1"},
    "nccl-socket": {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
    },
    "nccl-nvlink": {},
}


def overlap(suite: Suite) -> Record:
    """Measures how well collectives with start and done overlap with matrix products."""
    small = ["--mib=4", "--width=256"] if suite.platform == "cpu" else []
    text, _ = suite.launch("tests/programs/gpu/cuda_overlap.py", *small)
    return json.loads(text.strip().splitlines()[-1])


def bound(suite: Suite) -> Record:
    """Runs the C++ benchmark of the CUDA engine, which also measures the bound of the links."""
    sizes = "1048576,16777216,67108864,268435456"
    text, complete = suite.run(
        str(suite.build / "cuda_device_benchmark"), f"--sizes=4096,65536,{sizes}", check=False
    )
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not complete:
        raise StageError("failed", results=rows)
    return {"results": rows}


_ONE_WAY = ("broadcast", "gather", "scatter", "reduce")
_ALL_BYTES = ("all_reduce", "broadcast", "reduce")


def flush(suite: Suite) -> Record:
    """Runs the C++ benchmark on coherent and `flush` pools, and the benchmark of the bound."""
    text, _ = suite.run(
        str(suite.build / "cuda_flush_bound_benchmark"), "--threads=3,4", "--turns=3"
    )
    bounds = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    # If ranks share a GPU, their copies may wait for each other in one queue of the GPU. So only
    # kernels move data then.
    by_kernels = ["--copy_engine=1000000000000"] if suite.shares_gpu else []
    text, complete = suite.run(
        *(str(suite.build / "cuda_device_benchmark"), f"--ranks={suite.ranks}", "--bound=0"),
        *("--sizes=4096,1048576,16777216,268435456", "--coherence=coherent,flush,memory"),
        *("--repeats=5", *by_kernels),
        check=False,
    )
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    add_ratios(rows, bounds if suite.ranks == 2 and not suite.shares_gpu else [])
    if not complete:
        raise StageError("failed", bounds=bounds, results=rows)
    return {"bounds": bounds, "results": rows}


def add_ratios(rows: list[dict], bounds: list[dict]) -> None:
    """Adds to each row its time and the bound, both relative to the time in a coherent pool.

    The bound is the time of two GPUs' copies without any protocol, but with the same cache lines
    written back and dropped (cc/bench/cuda/flush_bound_benchmark.cc). It includes no latencies, so
    it does not apply to short calls.
    """
    coherent = {
        (row["op"], row["bytes"]): row["time_us"]["median"]
        for row in rows
        if row["coherence"] == "coherent"
    }
    for row in rows:
        op, size = row["op"], row["bytes"]
        row["times_coherent"] = round(row["time_us"]["median"] / coherent[op, size], 2)
        key = (
            "one" if op in _ONE_WAY else "both",
            size,
            {"flush": "back", "memory": "left"}.get(row["coherence"]),
        )
        found = [
            bound["time_us"]["median"]
            for bound in bounds
            if (bound["ways"], bound["bytes"], bound["written"]) == key
        ]
        if found and size >= 16 << 20:
            bound_us = min(found) * (1 if op in _ALL_BYTES else 0.5)
            row["bound_times_coherent"] = round(bound_us / coherent[op, size], 2)


def bench(
    sizes: str, baselines: str, ops: str = _OPS, repeats: int = 5, **environment: str
) -> Callable[[Suite], Record]:
    """Returns a stage that times collectives through JAX, those of jax_cxl and those of NCCL.

    NCCL reads once per process which ways it may use, so each baseline is a run of its own.
    """

    def run(suite: Suite) -> Record:
        record: Record = {"environment": environment, "results": []}
        for baseline in baselines.split(","):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "bench.json"
                text, complete = suite.run(
                    *(sys.executable, "-m", "jax_cxl", "bench", "--platform", "cuda"),
                    *("--ranks", str(suite.ranks), "--ops", ops, "--sizes", sizes),
                    *("--baseline", "nccl", "--repeats", str(repeats), "--json", str(path)),
                    check=False,
                    **environment,
                    **_WAYS_OF_NCCL[baseline],
                )
                found = json.loads(path.read_text()) if path.exists() else {"results": []}
            record["command"] = found.get("command")
            for row in found["results"]:
                if row["backend"] == "nccl":
                    record["results"].append(row | {"backend": baseline})
                elif baselines.startswith(baseline):  # The first run stands for all of jax_cxl's.
                    record["results"].append(row)
            if not complete:
                raise StageError("incomplete", stdout=text[-3000:], **record)
        return record

    return run


def rows(suite: Suite) -> Record:
    """Checks and times take_rows, ragged_all_to_all and dense all_to_alls, which take turns."""
    small = () if suite.platform == "cuda" else ("--tokens=128,1024", "--width=64")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.json"
        suite.launch(
            "benchmarks/collectives/rows.py", f"--json={path}", *small, NCCL_P2P_DISABLE="1"
        )
        return {"results": json.loads(path.read_text())["results"]}


def snapshots(suite: Suite) -> Record:
    """Saves and restores 4 GiB during steps, in memory with and without coherence."""
    on_gpus = suite.platform == "cuda"
    found = {}
    for coherence in ("coherent", "flush"):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "costs.json"
            suite.launch(
                *("benchmarks/snapshots/snapshot_costs.py", f"--json={path}", "--orbax=false"),
                *("--steps=20", "--every=20", f"--coherence={coherence}"),
                "--rounds=3",
                *(("--mib=4096", "--step_ms=50") if on_gpus else ("--mib=64", "--step_ms=5")),
            )
            found[coherence] = json.loads(path.read_text())["results"]
    return {"results": found}


# Flags for the small model that --platform=cpu uses to try the suite.
_SMALL = ("--width=64", "--heads=4", "--sequence_length=32", "--layers=2")
# XLA's own way to overlap collectives with computation.
_HIDES = "--xla_gpu_enable_latency_hiding_scheduler=true"


# By default XLA merges the collectives of a layer, and a merged collective has to wait for the last
# operand. These flags keep collectives of 1 MiB or more apart.
SEPARATE = tuple(
    f"--xla_gpu_{kind}_combine_threshold_bytes={1 << 20}"
    for kind in ("all_reduce", "all_gather", "reduce_scatter")
)


def several(limit: int) -> str:
    """Returns XLA's flag that lets `limit` collectives run at a time. By default, it is one."""
    return f"--xla_gpu_experimental_parallel_collective_overlap_limit={limit}"


def jit_training(suite: Suite) -> Record:
    """Measures training by jax.jit alone, with NCCL through host memory and with the pool."""
    return {"results": jit_steps(suite, (several(4), *SEPARATE), "--repeats=7")}


def jit_steps(suite: Suite, xla_flags: Sequence[str], *flags: str) -> list[dict]:
    """Runs benchmarks/models/jit_training.py; returns its rows.

    Args:
      suite: the suite.
      xla_flags: flags of XLA in addition to those for its latency hiding scheduler and autotuning.
      *flags: flags of the program.
    """
    on_gpus = suite.platform == "cuda"
    environment = {
        "XLA_FLAGS": " ".join((_autotuned(suite), _HIDES, *xla_flags)),
        "NCCL_P2P_DISABLE": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "jit.json"
        text, _ = suite.launch(
            *("benchmarks/models/jit_training.py", f"--json={path}", "--compilations=0", *flags),
            *("--preset=340m", f"--batch_size={_sequences(suite)}"),
            *(() if on_gpus else _SMALL),
            **environment if on_gpus else {},
        )
        print(
            "".join(f"  {line}\n" for line in text.splitlines() if line.startswith("step")), end=""
        )
        rows: list[dict] = json.loads(path.read_text())["results"]
        return rows


def moe(suite: Suite) -> Record:
    """Measures the exchange of a mixture of experts, and a training step with it.

    Both are compared with NCCL, which communicates through memory of the host.
    """
    on_gpus = suite.platform == "cuda"
    exchange = ["--dtype=bfloat16", "--width=4096", "--sizes=8MiB,32MiB,128MiB"]
    exchange.append("--routings=uniform,skewed")
    step = ["--preset=moe", "--repeats=7"]
    environment = {"NCCL_P2P_DISABLE": "1", "XLA_FLAGS": f"{_autotuned(suite)} {_HIDES}"}
    if not on_gpus:
        exchange = ["--sizes=64KiB", "--repeats=1"]
        step += [*_SMALL, "--batch_size=4", "--repeats=1"]
        environment = {}
    found: Record = {}
    with tempfile.TemporaryDirectory() as folder:
        # The exchange comes first, because its programs compile in a fraction of the time of the
        # step's.
        for name, program, flags in (
            (
                "exchange",
                "benchmarks/models/moe.py",
                [*exchange, "--ways=dispatch,dense,dense-lax"],
            ),
            ("step", "benchmarks/models/moe_training.py", step),
        ):
            path = pathlib.Path(folder) / f"{name}.json"
            _, complete = suite.launch(
                program, f"--json={path}", *flags, check=False, **environment
            )
            if path.exists():
                found[name] = json.loads(path.read_text())["results"]
            if not complete:
                raise StageError("incomplete", **found)
    return found


def transformer(*kinds: str, **environment: str) -> Callable[[Suite], Record]:
    """Returns a stage that trains examples/train_transformer.py once with each of `kinds`.

    Args:
      kinds: kinds of collectives. "cxl" is jax_cxl, "lax" is NCCL through memory of the host.
      environment: variables of all runs.
    """

    def run(suite: Suite) -> Record:
        on_gpus = suite.platform == "cuda"
        flags = ["--preset=340m", f"--batch_size={_sequences(suite)}"]
        steps = 200
        if not on_gpus:
            steps = 30
            flags += _SMALL
        flags += [f"--steps={steps}", f"--evaluate_every={steps}", "--measure"]
        tuned = _autotuned(suite)
        environments = {
            "cxl": {"XLA_FLAGS": tuned},
            "lax": {"XLA_FLAGS": f"{tuned} {_HIDES}", "NCCL_P2P_DISABLE": "1"},
        }
        # The first run gets 60% of the time, so that the second one still runs if the first hangs.
        begin, end = time.monotonic(), suite.deadline
        found: Record = {}
        losses = []
        with tempfile.TemporaryDirectory() as folder:
            for kind in kinds:
                path = pathlib.Path(folder) / f"{kind}.json"
                first = kind != kinds[-1]
                suite.deadline = begin + 0.6 * (end - begin) if first else end
                variables = environment | (environments[kind] if on_gpus else {})
                try:
                    suite.launch(
                        *("examples/train_transformer.py", *flags, f"--json={path}"),
                        *(f"--platform={suite.platform}", f"--collectives={kind}"),
                        **variables,
                    )
                except StageError as error:
                    found[kind] = {"status": error.status, **error.record}
                    continue
                found[kind] = json.loads(path.read_text())
                found[kind]["environment"] = {
                    # Do not record the path of the build folder: it means nothing on other
                    # machines.
                    variable: value.replace(str(suite.build), "FOLDER")
                    for variable, value in variables.items()
                }
                losses.append([loss for _, loss in found[kind]["train_loss"]])
        if len(losses) < len(kinds):
            raise StageError("failed", **found)
        if len(losses) == 2:
            differences = [abs(a - b) / abs(b) for a, b in zip(*losses, strict=True)]
            found["largest_relative_loss_difference"] = max(differences)
        return found

    return run


def _sequences(suite: Suite) -> int:
    """Returns how many sequences a step has.

    With more sequences, computation would hide all communication; with fewer, none of it.
    """
    return {2: 12}.get(suite.ranks, 8 * suite.ranks)


def _autotuned(suite: Suite) -> str:
    """Returns XLA's flag that makes all runs share the measurements of matrix kernels."""
    measurements = suite.build / "autotune"
    measurements.mkdir(parents=True, exist_ok=True)
    return f"--xla_gpu_per_fusion_autotune_cache_dir={measurements}"
