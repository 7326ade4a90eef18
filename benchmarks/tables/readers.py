"""Measures the memory of several processes that all read the same table.

    python benchmarks/tables/readers.py [--readers=4] [--mib=1024]

Each process takes all rows of the table. Then it prints its proportional share (PSS) of the memory
of the store, and of all memory that it uses. In a PSS, Linux divides each page evenly among the
processes that use it. So the shares of the store add up to one table, not to one table per process.
"""

import argparse
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/helpers"))

import jax
import numpy as np
import shared_folder

import jax_cxl

_ROW_BYTES = 1024


def _share(path: str) -> tuple[float, float]:
    """Returns this process's PSS in MiB: of the file at `path`, and of all its memory."""
    of_file = total = 0
    mapped = ""
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if "-" in name and " " in line and not rest.strip().endswith("kB"):
            mapped = line
        elif name == "Pss":
            size = int(rest.split()[0])
            total += size
            of_file += size if path in mapped else 0
    return of_file / 1024, total / 1024


def _read(where: str, path: str) -> None:
    table = jax_cxl.Table.open(where, "table")
    take = jax.jit(lambda ids: table.take(ids).sum())
    step = 1 << 14
    for start in range(0, table.shape[0], step):
        take(np.arange(start, start + step, dtype=np.int32)).block_until_ready()
    print("ready", flush=True)
    sys.stdin.readline()
    of_file, total = _share(path)
    print(f"share of the store {of_file:.0f} MiB, of all memory {total:.0f} MiB", flush=True)
    sys.stdin.readline()


def main() -> None:
    """Starts the readers, or runs one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--mib", type=int, default=1024, help="size of the table")
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        _read(*options.read)
        return
    with shared_folder.folder("jax_cxl_readers.") as folder:
        path = f"{folder}/store"
        where = f"file:{path}?size={options.mib + 64}MiB"
        rows = options.mib * (1 << 20) // _ROW_BYTES
        blocks = (np.ones((1 << 14, _ROW_BYTES // 4), np.float32) for _ in range(0, rows, 1 << 14))
        shape = (rows, _ROW_BYTES // 4)
        jax_cxl.Table.create(where, "table", blocks, shape=shape, dtype=np.float32).close()
        command = [sys.executable, __file__, "--read", where, path]
        pipe = subprocess.PIPE
        readers = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            for _ in range(options.readers)
        ]
        for _ in range(2):
            for reader in readers:
                assert reader.stdin is not None and reader.stdout is not None
                print(reader.stdout.readline().strip())
            for reader in readers:
                assert reader.stdin is not None
                reader.stdin.write("\n")
                reader.stdin.flush()
        for reader in readers:
            reader.wait()


if __name__ == "__main__":
    main()
