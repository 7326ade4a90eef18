"""Compares random jitted programs with NumPy, with collectives taken over from XLA.

    python -m jax_cxl.launch -n 2 --devices-per-process 2
        -m lab.fuzz.fuzz_programs --count 100

Each seed determines a program over a random mesh. The program uses whole arrays under `jax.jit`, or
`jax.shard_map`, fully or partially manual. It runs several times with `jax_cxl.replace_collectives`
and several times without, and its results are compared with NumPy's. Values are mostly whole
numbers, whose sums are the same in any order, so results have to be right in every bit. The
same seed gives another program on another number of devices. If a program takes longer than
`--limit`, the job prints its seed and ends.

`--break-groups` is a negative control: the takeover ignores the order of a mesh's devices, and the
comparison has to find this. The exit status is 1 if the takeover gave a wrong result, 3 after a
program that hung.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import sys
import time
from typing import Any

# Hides warnings: XLA prints one for each change of sharding that it cannot make directly.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import numpy as np

import jax_cxl
from jax_cxl._commands.measuring import report, results_file
from jax_cxl._takeover.hlo.module import Module
from lab.fuzz import jit_programs, manual_programs, values
from lab.fuzz.program import Program
from lab.fuzz.verdicts import Limit, Verdicts

_RUNS = 2
_XLA = re.compile(r".* (all-|reduce-scatter|ragged-|collective-|send|recv)[a-z-]*\(.*")
_SHARDY = "jax_use_shardy_partitioner"
_VERDICTS = (
    *("right", "nothing taken over", "wrong", "fails in one way only"),
    *("XLA is wrong too", "only XLA is wrong", "refused by JAX or XLA"),
    "NumPy's part is wrong",
)


def main() -> int:
    """Runs the programs; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--count", type=int, default=100, help="how many seeds (default: 100)")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a program may take")
    parser.add_argument("--break-groups", action="store_true", help="negative control")
    parser.add_argument(
        "--numpy-alone",
        action="store_true",
        help="do not run the programs without the takeover: NCCL refuses ranks that share a GPU",
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="file for the summary")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    # Slots are small for two reasons. Each order of devices makes new groups, whose rings stay in
    # the pool, so the rings have to be small. And large arrays should take several rounds.
    os.environ.setdefault("JAX_CXL_SLOT_BYTES", "4096")
    jax.config.update("jax_enable_x64", True)
    # Fewer optimizations save time, because most of the time goes into compiling what surrounds the
    # collectives.
    jax.config.update("jax_disable_most_optimizations", True)
    jax_cxl.initialize()
    if options.break_groups:
        _break_groups()
    seeds = range(options.first, options.first + options.count)
    summary = _run(seeds, options.limit, options.numpy_alone)
    if jax.process_index() == 0:
        print(json.dumps(summary), flush=True)
        if options.json:
            command = results_file.command_line("-m lab.fuzz.fuzz_programs", sys.argv[1:])
            header = report.header(load, command)
            results_file.write(options.json, header | {"results": [summary]})
    return 1 if summary["wrong"] or summary["fails in one way only"] else 0


def _run(seeds: range, limit: float, numpy_alone: bool) -> dict[str, Any]:
    """Runs the programs of these seeds; returns how many programs got each verdict."""
    start, verdicts = time.monotonic(), Verdicts(limit)
    counts: collections.Counter[str] = collections.Counter(dict.fromkeys(_VERDICTS, 0))
    for seed in seeds:
        program = _program(seed)
        text = f"seed {seed}: {program.text}"
        with Limit(limit, text):
            found = verdicts.gather(str(seed), _check(program, seed, numpy_alone))
        verdict = _verdict(found)
        if verdict not in ("right", "nothing taken over") and jax.process_index() == 0:
            print(f"{verdict}: {text}: {found}", flush=True)
        counts[verdict] += 1
        counts["collectives taken over"] += found["taken"]
        counts["collectives left to XLA"] += found["left"]
    return {
        "processes": jax.process_count(),
        "devices": jax.device_count(),
        "first seed": seeds.start,
        "programs": len(seeds),
        **counts,
        "seconds": round(time.monotonic() - start),
    }


def _program(seed: int) -> Program:
    rng = np.random.default_rng(seed)
    module = jit_programs if rng.random() < 0.65 else manual_programs
    program = module.random_program(rng)
    if _SHARDY in jax.config.values:
        jax.config.update(_SHARDY, seed % 4 > 0 or program.needs_shardy)  # Else GSPMD.
    return program


def _check(program: Program, seed: int, numpy_alone: bool) -> dict[str, int]:
    """Runs a program with the takeover and without.

    Returns:
      Counts, such as how many elements on this process's devices are wrong with the takeover, and
      how many without.
    """
    found = {"taken": 0, "left": 0, "with": 0, "without": 0, "differ": 0}
    here = [d for d in program.mesh.mesh.devices.flat if d.process_index == jax.process_index()]
    if not here:
        return found
    rng = np.random.default_rng([seed, 1])
    arguments = [[i.make(rng) for i in program.inputs] for _ in range(_RUNS)]
    before = jax_cxl.stats()
    local = jax.process_count() == 1 or numpy_alone or seed % 2 == 0
    with jax_cxl.replace_collectives(local=local):
        ours = _outputs(program, arguments, seed, numpy_alone)
    after = jax_cxl.stats()
    found["taken"] = after.collectives_taken - before.collectives_taken
    found["left"] = after.collectives_left - before.collectives_left
    theirs = ours if numpy_alone else _outputs(program, arguments, seed)
    found["with fails"], found["without fails"] = int(ours is None), int(theirs is None)
    if ours is None or theirs is None:
        return found
    for values_in, a, b in zip(arguments, ours, theirs, strict=True):
        for want, x, y in zip(program.oracle(values_in), a, b, strict=True):
            for shard, other in zip(x.addressable_shards, y.addressable_shards, strict=True):
                got, reference = np.asarray(shard.data), np.asarray(other.data)
                part = want[shard.index]
                found["with"] += values.wrong(got, part, program.exact)
                if not numpy_alone:  # Else nobody knows whether XLA is right.
                    found["without"] += values.wrong(reference, want[other.index], program.exact)
                found["differ"] += values.wrong(got, reference, program.exact)
    if found["with"]:
        found["alone"] = _wrong_alone(program, arguments)
    return found


def _wrong_alone(program: Program, arguments: list) -> int:
    """Returns how many elements differ between JAX on one device and NumPy."""
    if program.alone is None:
        return 0
    wrong = 0
    for values_in in arguments:
        for got, want in zip(program.alone(*values_in), program.oracle(values_in), strict=True):
            wrong += values.wrong(np.asarray(got), want, program.exact)
    return wrong


def _outputs(program: Program, arguments: list, seed: int, never_xla: bool = False) -> list | None:
    """Returns the outputs of all runs, or None if the program does not compile or must not run.

    Args:
      program: the program.
      arguments: arguments of each run.
      seed: seed of the program.
      never_xla: do not run the program if collectives of XLA remain in it.
    """
    try:
        compiled = program.function.lower(*program.place(arguments[0])).compile()
        if never_xla and (theirs := _XLA.search(compiled.as_text())):
            print(f"seed {seed} has a collective of XLA: {theirs[0]}"[:400], flush=True)
            return None
    except Exception as error:
        if jax.process_index() == 0:
            print(f"seed {seed} is not compiled: {type(error).__name__}: {error}"[:400], flush=True)
        return None
    outputs = [compiled(*program.place(values_in)) for values_in in arguments]
    return jax.block_until_ready(outputs)


def _verdict(found: dict[str, int]) -> str:
    """Returns the verdict on a program, from the findings of all processes."""
    if found.get("with fails") or found.get("without fails"):
        both = found["with fails"] and found["without fails"]
        return "refused by JAX or XLA" if both else "fails in one way only"
    if found.get("alone"):
        return "NumPy's part is wrong"
    if found["with"]:
        return "XLA is wrong too" if found["without"] and not found["differ"] else "wrong"
    if found["without"]:
        return "only XLA is wrong"
    return "right" if found["taken"] else "nothing taken over"


def _break_groups() -> None:
    """Makes the takeover assume that devices execute a module's parts in the order of their ids."""
    assignment = Module.device_assignment.func

    def in_order(module: Module) -> Any:
        ids = assignment(module)
        return None if ids is None else np.sort(ids, axis=None).reshape(ids.shape)

    Module.device_assignment = property(in_order)  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    sys.exit(main())
