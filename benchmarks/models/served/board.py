"""What the two processes tell each other, and what they print."""

import concurrent.futures
import ctypes
import json
import mmap
import os
import pathlib
import sys
import time
from typing import Any

_BEGIN = float(os.environ["SERVED_BEGIN"])  # of serve.py, by the clock of all processes
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux


class Board:
    """Values by name, in files of a folder that both processes have."""

    def __init__(self, arguments: list[str]):
        """Takes the arguments that serve.py gives to both processes."""
        self.folder = pathlib.Path(arguments[1])
        self.sizes = arguments[2].split(",")
        self.versions = int(arguments[3])
        self.end = float(arguments[4])
        self.files = int(arguments[5])

    def put(self, name: str, value: Any = None) -> None:
        """Sets a value."""
        part = self.folder / f".{name}"
        part.write_text(json.dumps(value))
        part.rename(self.folder / name)

    def has(self, name: str) -> bool:
        """Whether there is a value."""
        return (self.folder / name).exists()

    def get(self, name: str) -> Any:
        """Waits for a value."""
        while not self.has(name):
            if time.monotonic() > self.end:
                sys.exit(f"{name} did not come in time")
            time.sleep(0.0005)
        return json.loads((self.folder / name).read_text())

    def store(self, size: str) -> pathlib.Path:
        """Returns the file of the store for a size."""
        return self.folder / f"{size}.store"


def bytes_of_store(nbytes: int) -> int:
    """Returns how large a store is for three versions of weights of this size, and some room."""
    return ((3 * nbytes >> 20) + 64) << 20


def make(path: pathlib.Path, size: int) -> None:
    """Makes a file whose pages exist. Many threads zero the pages faster than one."""
    path.touch(0o600)
    with path.open("rb+") as file:
        file.truncate(size)
        with mmap.mmap(file.fileno(), size) as memory:
            view = ctypes.c_char.from_buffer(memory)
            start, each = ctypes.addressof(view), 256 << 20
            libc = ctypes.CDLL(None)
            libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
                for at in range(0, size, each):
                    threads.submit(libc.madvise, start + at, min(each, size - at), _POPULATE_WRITE)
            del view


def say(what: str, **values: Any) -> None:
    """Prints a line. `at` counts seconds since serve.py has begun."""
    values = {"at": time.monotonic() - _BEGIN} | values
    rounded = {k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({"what": what, "emulated": True, **rounded}), flush=True)
