"""Measures a training step of JAX with each way to the pool, and with NCCL through host memory.

    python benchmarks/nccl/jax_doors.py --ranks=2 --json FILE

The program is examples/train_jit.py with its sizes for GPUs, one process for each GPU. It runs in
three ways, which take turns: `nccl` is NCCL with NCCL_P2P_DISABLE=1, and `hook` and `door` are the
launcher's options `--replace-collectives` and `--nccl`. For each run the script prints the time of
a step, the seconds of compilation, the peak memory of the first GPU, and the last loss.

jax_cxl must be installed, with its module for GPUs.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

_PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_jit.py"
_WAYS = {"nccl": [], "hook": ["--replace-collectives"], "door": ["--nccl"]}


def _run(way: str, options: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder, "figures.json")
        command = [
            *(sys.executable, "-m", "jax_cxl.launch", "-n", str(options.ranks), "--no-prefix"),
            *(*_WAYS[way], str(_PROGRAM), f"--json={figures}", f"--steps={options.steps}"),
            *(["--preset=340m"] if not options.program_flags else options.program_flags.split()),
            *(f"--evaluate_every={options.steps}", f"--corpus={options.corpus}"),
        ]
        environment = {"NCCL_P2P_DISABLE": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return {"way": way, "error": done.stderr[-2000:]}
        found = json.loads(figures.read_text())
    return {
        "way": way,
        "step_ms": round(1000 * found["train_seconds"] / options.steps, 2),
        "compile_seconds": round(found["compile_seconds"], 2),
        "peak_mib": found["peak_bytes"] and found["peak_bytes"] >> 20,
        "loss": found["train_loss"][-1][1],
    }


def main() -> None:
    """Runs all ways in turn, several times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--ways", default=",".join(_WAYS), help="of nccl, hook, door")
    parser.add_argument("--program_flags", default="", help="in place of --preset=340m")
    parser.add_argument("--corpus", default="", help="as for the program")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    for _ in range(options.turns):
        for way in options.ways.split(","):
            rows.append(_run(way, options))
            print(json.dumps(rows[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
