"""Random programs for GPUs, with collectives that start early. Needs XLA's compiler, but no GPU.

    PYTHONPATH=$JAX_CXL_GPU_COMPILER python -m lab.fuzz.fuzz_early --count 100

Each seed determines a program over 2 to 8 GPUs of 1 to 4 processes, and the time estimates that the
scheduler uses. XLA's compiler schedules the program, and jax_cxl's hook then makes its collectives
start early. The memory in use may grow by a random number of bytes. An independent check compares
the new order with XLA's order: each instruction follows its operands and control dependencies, no
memory is overwritten before its last read, the memory in use grows by no more than allowed, and a
process whose module has other names and numbers gets the same order.

`--controls` also makes deliberate mistakes with each program, which the check has to find. The exit
status is 1 if an order is wrong.
"""

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import numpy as np

from jax_cxl._commands.measuring import report, results_file
from jax_cxl._takeover.schedule import costs
from jax_cxl._takeover.world import World
from lab.fuzz.early import absent_gpus, assigned as assignment, check, compiled, mistakes, programs

_VERDICTS = (
    *("wrong", "right", "no other order", "nothing taken over", "not compiled"),
    "crashes XLA's compiler",
)
_LIMITS = 0, 1 << 20, 16 << 20, 256 << 20


def main() -> int:
    """Runs the programs; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--count", type=int, default=100, help="how many seeds (default: 100)")
    parser.add_argument(
        "--controls", action="store_true", help="make mistakes with each program too"
    )
    parser.add_argument(
        "--assigned",
        action="store_true",
        help="execute the orders on the buffers that XLA assigns too (JAX 0.11 or newer)",
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="file for the summary")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.count)
    if options.worker:
        _work(seeds, options.controls, options.assigned)
        return 0
    load = os.getloadavg()[0]
    summary = _run(seeds, options.controls, options.assigned)
    print(json.dumps(summary), flush=True)
    if options.json:
        command = results_file.command_line("python -m lab.fuzz.fuzz_early", sys.argv[1:])
        results_file.write(options.json, report.header(load, command) | {"results": [summary]})
    return 1 if summary["wrong"] else 0


def _run(seeds: range, controls: bool, assigned: bool) -> dict[str, Any]:
    """Runs the programs in a worker process, as XLA's compiler may crash. Returns a summary."""
    start, orders = time.monotonic(), hashlib.sha256()
    counts: collections.Counter[str] = collections.Counter(dict.fromkeys(_VERDICTS, 0))
    most, buffers, following = 0, 0, seeds.start
    found_mistakes = collections.Counter(dict.fromkeys(mistakes.ALL, 0)) if controls else None
    while following < seeds.stop:
        for line in _worker(range(following, seeds.stop), controls, assigned):
            found = json.loads(line)
            following = found["seed"] + 1
            counts[found["verdict"]] += 1
            counts.update(found["counts"])
            if found_mistakes is not None:
                found_mistakes.update(found["mistakes"])
            most = max(most, found["more"])
            buffers = max(buffers, found["buffers"])
            orders.update(found["orders"].encode())
            if found["errors"]:
                text = "\n  ".join([found["text"], *found["errors"]])
                print(f"seed {found['seed']}, {found['verdict']}: {text}", flush=True)
        if following < seeds.stop:
            counts["crashes XLA's compiler"] += 1
            following += 1
    return {
        "first seed": seeds.start,
        "programs": len(seeds),
        **counts,
        **({"mistakes found": dict(found_mistakes)} if found_mistakes is not None else {}),
        "most MiB more in use": round(most / (1 << 20), 1),
        **({"most MiB more in XLA's buffers": round(buffers / (1 << 20), 1)} if assigned else {}),
        "orders": orders.hexdigest()[:16],
        "seconds": round(time.monotonic() - start),
    }


def _worker(seeds: range, controls: bool, assigned: bool) -> Iterator[str]:
    command = [sys.executable, "-m", "lab.fuzz.fuzz_early", "--worker", f"--first={seeds.start}"]
    command += [f"--count={len(seeds)}", *(["--controls"] if controls else [])]
    command += ["--assigned"] if assigned else []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        errors: collections.deque[str] = collections.deque(maxlen=40)
        thread = threading.Thread(target=errors.extend, args=(process.stderr,))
        thread.start()
        yield from process.stdout
        thread.join()
        if process.wait() == 1:  # An exception in Python.
            raise RuntimeError("".join(errors))


def _work(seeds: range, controls: bool, assigned: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if assigned:
            os.environ["XLA_FLAGS"] = assignment.flags(pathlib.Path(folder))
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        absent_gpus.register_handlers()
        for seed in seeds:
            print(json.dumps(_found(seed, controls, assigned)), flush=True)


def _found(seed: int, controls: bool, assigned: bool) -> dict[str, Any]:
    """Checks the program of a seed; returns what the worker reports about it."""
    verdict, result, text, found_mistakes = _check(seed, controls, assigned)
    counts = {
        "collectives": len(result.collectives) // 2,
        "starts that moved": result.moved,
        "instructions put off": result.delayed,
        "with errors in XLA's own order": int(result.xla > 0),
    }
    return {
        "seed": seed,
        "verdict": verdict,
        "text": text,
        "counts": counts,
        "errors": result.errors[:8],
        "more": result.more,
        "buffers": result.buffers,
        "orders": hashlib.sha256(repr(result.collectives).encode()).hexdigest(),
        "mistakes": found_mistakes,
    }


def _check(seed: int, controls: bool, assigned: bool) -> tuple[str, check.Result, str, list[str]]:
    """Checks the program of a seed.

    Returns:
      The verdict, the result of the check, the program's text, and which deliberate mistakes the
      check found.
    """
    rng = np.random.default_rng(seed)
    processes = int(rng.integers(1, 5))
    devices = absent_gpus.devices(processes, max(2, 8 // processes) if processes < 3 else 2)
    limit = _LIMITS[int(rng.integers(len(_LIMITS)))]
    local = processes == 1 or bool(rng.random() < 0.5)
    gpus = len(devices) // processes
    world = World(
        {d.id: rank for rank, d in enumerate(devices)},
        {d.id: rank // gpus for rank, d in enumerate(devices)},
        local=local,
        gpus=True,
    )
    with compiled.as_on_gpus(devices):
        whole = programs.random_whole(rng, devices)
        text = f"{processes} processes, {limit >> 20} MiB, {whole.text}"
        try:
            data = compiled.scheduled(whole)
        except Exception as error:
            text = f"{text}: {type(error).__name__}: {error}"
            return "not compiled", check.Result(), text, []
    with _random_costs(rng):
        if compiled.taken_over(data, world, None) is None:
            return "nothing taken over", check.Result(), text, []
        there, names = compiled.elsewhere(data, rng)
        result, changed = _compare(data, there, names, world, limit)
        found = []
        for mistake in mistakes.ALL if controls else ():
            with mistakes.made(mistake):
                if _compare(data, there, names, world, limit)[0].errors:
                    found.append(mistake)
        if assigned:
            with compiled.as_on_gpus(devices):
                (_, old), (errors, new) = (
                    compiled.assigned(whole, world, b) for b in (None, limit)
                )
            result.errors.extend(errors)
            result = dataclasses.replace(result, buffers=new - old)
    verdict = "wrong" if result.errors else "right" if changed else "no other order"
    return verdict, result, text, found


def _compare(
    data: bytes, there: bytes, names: dict[str, str], world: World, limit: int
) -> tuple[check.Result, bool]:
    """Checks the new order of the module `data`, and that the module `there` gets the same order.

    `there` is the module as another process has it. `names` maps its names to those in `data`.

    Returns:
      The result of the check, and whether the order has changed.
    """
    before = compiled.taken_over(data, world, None)
    try:
        after, other = (compiled.taken_over(d, world, limit) for d in (data, there))
    except jax.errors.JaxRuntimeError as error:
        return check.Result([f"XLA refuses the order: {error}"]), True
    assert before is not None and after is not None and other is not None
    result = check.compare(before, after, limit)
    result.errors.extend(check.disagreements(after, other, names))
    return result, before != after


def _random_costs(rng: np.random.Generator) -> contextlib.AbstractContextManager:
    """Gives the scheduler random time estimates. Every order must be right, whatever they are.

    With real estimates, short programs change little.
    """
    return mock.patch.multiple(
        costs,
        _LAUNCH=float(rng.choice((4e-6, 2e-4, 1e-3))),
        _CALL=float(rng.choice((30e-6, 3e-3))),
        _POOL_BYTES=float(rng.choice((30e9, 3e9))),
    )


if __name__ == "__main__":
    sys.exit(main())
