"""Runs jax_cxl between two kernels: two QEMU guests that share one /dev/dax0.0.

    python -m lab.guests.two_hosts              # the short set of cases
    python -m lab.guests.two_hosts --all
    python -m lab.guests.two_hosts --stores         # the cases with stores and tables alone
    python -m lab.guests.two_hosts --cxl        # a CXL type-3 device
    python -m lab.guests.two_hosts --json=FILE  # keeps the table

Needs root on Debian 12 and the packages that the program names if they are missing. The first run
downloads Debian's packages and makes the guests' disk, in build/two_hosts; later runs use that.
Guests reach each other by unix sockets, and nothing leaves the machine. Everything is emulated,
without KVM. So times are those of an emulator, and flushing a cache line does nothing: a missing
flush goes unnoticed here, but the tests find it with emulated incoherent pools.

The exit status is 0 if all cases passed.
"""

import argparse
import os
import pathlib
import platform
import sys
import time

from jax_cxl._commands.measuring import results_file
from lab.guests import cases, guest, image, session

_CACHE = image.ROOT / "build" / "two_hosts"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="all cases, not the short set")
    parser.add_argument("--stores", action="store_true", help="the cases with stores alone")
    parser.add_argument("--cxl", action="store_true", help="a CXL device in place of an NVDIMM")
    parser.add_argument("--cache", type=pathlib.Path, default=_CACHE, help="folder of the guests")
    parser.add_argument(
        "--slow",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="multiplies all time limits, those of jax_cxl too, for a busy machine",
    )
    parser.add_argument("--json", type=pathlib.Path, help="file for the table")
    options = parser.parse_args()
    if problem := image.missing():
        print(f"two_hosts: {problem}", file=sys.stderr)
        return 2
    began = time.monotonic()
    cache = options.cache.resolve()
    made = image.make(cache, options.cxl)
    print(f"guests made or found after {time.monotonic() - began:.0f} s", flush=True)
    memory = cache / ("cxl.img" if options.cxl else "nvdimm.img")
    if not memory.exists():
        with memory.open("wb") as file:
            file.truncate(guest.CXL_BYTES if options.cxl else guest.NVDIMM_BYTES)
    bench = guest.Bench(cache / "run", memory, made, options.cxl, options.slow)
    bench.prepare()
    running = session.Session(bench)
    try:
        if options.stores:
            if cases.boot(running):
                cases.stores(running)
        else:
            cases.short(running)
            if options.all:
                cases.long(running)
    except (session.CaseFailed, RuntimeError) as error:
        running.rows.append(session.Row("the run", False, 0.0, str(error)))
        print(error, file=sys.stderr)
    finally:
        running.close()
    passed = all(row.passed for row in running.rows)
    seconds = round(time.monotonic() - began)
    print(f"{'all cases passed' if passed else 'SOME CASES FAILED'}, {seconds} s")
    if options.json:
        results_file.write(options.json, _report(running, seconds, options))
    return 0 if passed else 1


def _report(running: session.Session, seconds: int, options: argparse.Namespace) -> dict:
    import jax

    flags = [name for name in ("all", "stores", "cxl") if getattr(options, name)]
    return {
        "command": " ".join(["python -m lab.guests.two_hosts", *(f"--{name}" for name in flags)]),
        "emulated": "two QEMU guests (TCG, no KVM) on one machine; "
        + ("a CXL type-3 device" if options.cxl else "an NVDIMM")
        + " as /dev/dax0.0; clwb does nothing there",
        "time_limits": f"{options.slow:g} times the defaults",
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "kernel_of_guests": running.bench.guest_image.kernel.name.removeprefix("vmlinuz-"),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "seconds": seconds,
        "cases": [
            {"case": row.case, "passed": row.passed, "seconds": row.seconds, "detail": row.detail}
            for row in running.rows
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
