"""Times collectives over all devices: in levels, as one call, and as the tuning table chooses.

    python -m jax_cxl.launch -n 2 --devices-per-process 4
        benchmarks/collectives/levels.py --json FILE.json

`python -m jax_cxl tune --devices-per-process` measures in the same way. docs/levels.md has results.

`--ways` chooses the ways to run a collective. `flat` is one call, `levels` works in levels, and
`table` is whichever of these two the tuning table chooses. `lax` is the collective of `jax.lax`
over the same axes, by Gloo. `copies` is a bound for collectives whose operand and result
have the same size: the devices of a process read and write as many bytes as in the collective, but
by plain copies between their buffers.

`bytes` counts the bytes that a process writes to the pool in one collective, from
`jax_cxl.stats()`.
"""

import argparse
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax

import jax_cxl
from jax_cxl import _sizes
from jax_cxl._commands.measuring import levels, report, results_file

_WAYS = ("flat", "levels", "table", "copies", "lax")


def _copies(x: Any) -> Any:
    """Moves the bytes of x by plain copies between the devices of a process, without the pool."""
    return jax_cxl.all_to_all(x, levels.AXES[1], 0, 0, tiled=True, levels=True)


def _ways(name: str, ranks: int, n: int) -> dict[str, Callable]:
    """Returns functions that run the collective `name` on `n` elements, by the names in `_WAYS`."""
    found = levels.flat_and_levels(name, ranks, n)
    found["table"] = levels.collective(jax_cxl, name, ranks)
    # jax.lax.broadcast is not a collective.
    if name != "broadcast":
        found["lax"] = levels.collective(jax.lax, name, ranks)
    if name in ("psum", "all_to_all", "broadcast") and n % ranks == 0:
        found["copies"] = _copies
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", default="psum")
    parser.add_argument("--sizes", default="4,256,4KiB,32KiB,128KiB,512KiB,1MiB,4MiB,16MiB,64MiB")
    parser.add_argument(
        "--ways",
        default="flat,levels,table,copies",
        help=f"flat, and others of {', '.join(_WAYS)} (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=3, help="for each row")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    chosen = options.ways.split(",")
    load = os.getloadavg()[0]
    jax_cxl.initialize()

    def ways(*arguments: Any) -> dict[str, Callable]:
        found = _ways(*arguments)
        return {way: found[way] for way in _WAYS if way in found and way in chosen}

    first = jax.process_index() == 0
    rows = []
    names, sizes = options.operations.split(","), _sizes.parse_list(options.sizes)
    for row in levels.rows(ways, names, sizes, options.seconds):
        rows.append(row)
        if first:
            cells = [
                f"{way} {row[way]['us']:10.0f} us ({row['flat']['us'] / row[way]['us']:5.2f}x,"
                f" {row[way]['bytes']} B)"
                for way in _WAYS
                if way in row
            ]
            print(f"{row['operation']:13}{row['size']:>10} B  {'  '.join(cells)}", flush=True)
    if first and options.json:
        command = results_file.command_line(
            f"python -m jax_cxl.launch -n {jax.process_count()} --devices-per-process"
            f" {jax.local_device_count()} benchmarks/collectives/levels.py",
            sys.argv[1:],
        )
        results_file.write(options.json, report.header(load, command) | {"results": rows})


if __name__ == "__main__":
    main()
