"""Builds, tests and measures jax_cxl on a machine with several GPUs: docs/cuda.md.

    python -m lab.gpu.gpu_suite [--stages=build,cpp_tests,matrix,...] [--budget=540]

Every stage has a time limit. If a stage fails or runs out of time, this is recorded, and the next
stages still run. The results file is rewritten after every stage.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

from jax_cxl._commands.measuring import results_file

# jax_cxl may be neither installed nor built yet, so import it from the checkout.
from lab.gpu import stages
from lab.gpu.process import StageError, Suite

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def main() -> int:
    """Runs the stages; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = list(stages.ALL)
    parser.add_argument(
        "--stages",
        default=",".join(name for name, stage in stages.ALL.items() if stage.default),
        help=f"of {', '.join(names)} (default: %(default)s)",
    )
    parser.add_argument("--budget", type=float, default=540, help="seconds in all (default: 540)")
    parser.add_argument("--ranks", type=int, default=0, help="GPUs to use (default: 4, 2 if fewer)")
    parser.add_argument(
        "--build",
        default="build/gpu",
        help="folder of the build (%(default)s), or of what was built elsewhere: docs/cuda.md",
    )
    parser.add_argument(
        "--platform",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu tries the suite itself: the stages matrix, overlap and transformer",
    )
    parser.add_argument("--output", help="results file (default: in benchmarks/results/gpu)")
    options = parser.parse_args()
    chosen = options.stages.split(",")
    for name in chosen:
        if name not in stages.ALL:
            parser.error(f"--stages: {name!r} is not one of {', '.join(names)}")

    gpus = _gpus()
    ranks = options.ranks or (4 if len(gpus) >= 4 else 2)
    kind = re.sub(r"^(NVIDIA|Tesla) ", "", gpus[0]).split()[0] if gpus else "none"
    date = datetime.date.today().isoformat()
    path = pathlib.Path(
        options.output or _ROOT / "benchmarks/results/gpu" / f"cuda-{ranks}x{kind}-{date}.json"
    )
    suite = Suite(_ROOT, _ROOT / options.build, ranks, options.platform, len(gpus))
    found = head("python -m lab.gpu.gpu_suite") | {
        "ranks": ranks,
        "ranks_share_one_gpu": suite.shares_gpu,
        "stages": {},
    }
    started = time.monotonic()
    for name in chosen:
        stage = stages.ALL[name]
        left = options.budget - (time.monotonic() - started)
        print(f"[{time.monotonic() - started:5.0f} s] {name}", flush=True)
        begin = time.monotonic()
        suite.deadline = begin + min(stage.seconds, left)
        try:
            if left <= 0:
                raise StageError("no time left")
            record = {"status": "ok", **stage.run(suite)}
        except StageError as error:
            record = {"status": error.status, **error.record}
        record["seconds"] = round(time.monotonic() - begin, 1)
        found["stages"][name] = record
        results_file.write(path, found)
        print(f"          {record['status']}, {record['seconds']} s", flush=True)
        if record["status"] != "ok":
            print(json.dumps(record, indent=1)[-2000:], flush=True)
    print(f"[{time.monotonic() - started:5.0f} s] wrote {path}", flush=True)
    return int(any(record["status"] != "ok" for record in found["stages"].values()))


def head(program: str) -> dict:
    """Returns what a results file begins with: this machine, the command line, the commit."""
    return {
        "machine": _machine(_gpus()),
        "command": results_file.command_line(program, sys.argv[1:]),
        "commit": _output("git", "-C", str(_ROOT), "rev-parse", "HEAD"),
        "emulated": True,
    }


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def _gpus() -> list[str]:
    query = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return _output(*query).splitlines()


def _machine(gpus: list[str]) -> dict:
    return {
        "gpus": gpus,
        "driver": _output(
            "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"
        ),
        "topology": _output("nvidia-smi", "topo", "-m").splitlines(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": _output(sys.executable, "-c", _VERSIONS),
        "nccl_environment": {k: v for k, v in os.environ.items() if k.startswith("NCCL_")},
        "load": round(os.getloadavg()[0], 2),
    }


_VERSIONS = """
import importlib.metadata as m
names = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "numpy", "nvidia-nccl-cu13")
have = {d.name.lower(): d.version for d in m.distributions()}
print(", ".join(f"{n} {have[n]}" for n in names if n in have))
"""


if __name__ == "__main__":
    sys.exit(main())
