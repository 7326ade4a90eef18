"""Times how a server in PyTorch takes the weights that a trainer in JAX publishes.

    python benchmarks/models/served/serve.py --sizes=1gb,16gb --seconds=120 --json FILE

The trainer publishes versions of a Llama of random bf16 weights. The server, transformers' Llama on
the same GPU, generates, and takes each version between two tokens. It never imports JAX. All bits
are checked against a computation of their own in PyTorch, and the logits against a forward pass in
JAX, those of small models also with both in float32. Every second version is read with
`non_blocking`, while a token is computed, and the next token is enqueued behind the copies.
`pause` is for how long the GPU computes nothing because of a read. `link` is the bare copy of the
same bytes from pinned memory, without checks, and `link_from_store` from the memory of the store.
For comparison the weights also go through safetensors, and torch.save and torch.load, in /dev/shm.

Each line of the output is a JSON object, printed as soon as it is known, so that a run that is cut
short still gives figures. Times are seconds of one clock. On a machine without a GPU the processes
use the CPU (`--sizes=tiny`), so that one can try the program out.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

_HERE = pathlib.Path(__file__).resolve().parent


def _run(role: str, folder: str, options: argparse.Namespace, end: float) -> subprocess.Popen:
    command = [sys.executable, str(_HERE / f"{role}.py"), folder, options.sizes]
    command += [str(options.versions), str(end), str(options.files)]
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}
    environment["SERVED_BEGIN"] = str(end - options.seconds)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def main() -> None:
    """Runs both processes, and stops them when the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default="tiny", help="as llama.SIZES names them")
    parser.add_argument("--versions", type=int, default=5, help="of each size")
    parser.add_argument("--seconds", type=float, default=600, help="for everything")
    parser.add_argument("--files", type=int, default=1, help="rounds of each kind of file")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
    options = parser.parse_args()
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    rows: list[dict] = []

    def follow(process: subprocess.Popen) -> None:
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("{"):
                rows.append(json.loads(line))
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n")

    with tempfile.TemporaryDirectory(prefix="jax_cxl_served.", dir=parent) as folder:
        end = time.monotonic() + options.seconds
        running = [_run(role, folder, options, end) for role in ("trainer", "server")]
        threads = [threading.Thread(target=follow, args=(process,)) for process in running]
        for thread in threads:
            thread.start()
        # If one process fails, the other would wait for it until the end.
        while any(p.poll() is None for p in running) and not any(p.poll() for p in running):
            if time.monotonic() > end:
                print("the time is over", flush=True)
                break
            time.sleep(0.05)
        for process in running:
            process.kill()
            process.wait()
        for thread in threads:
            thread.join()
    wrong = sum(row.get("wrong", 0) for row in rows)
    versions = sum(row["what"] == "version" for row in rows)
    print(json.dumps({"what": "end", "versions": versions, "wrong": wrong}), flush=True)
    sys.exit(0 if versions and not wrong else 1)


if __name__ == "__main__":
    main()
