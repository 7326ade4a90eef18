"""What the two processes tell each other, and what they print."""

import json
import pathlib
import sys
import time
from typing import Any


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
        """Waits for a value, for a minute at most."""
        end = min(self.end, time.monotonic() + 60)
        while not self.has(name):
            if time.monotonic() > end:
                sys.exit(f"{name} did not come in time")
            time.sleep(0.0005)
        return json.loads((self.folder / name).read_text())

    def where(self, size: str, nbytes: int) -> str:
        """Returns the URI of the store for a size: three versions, and some room."""
        return f"file:{self.folder}/{size}.store?size={(3 * nbytes >> 20) + 64}MiB"


def say(what: str, **values: Any) -> None:
    """Prints a line."""
    rounded = {k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({"what": what, "emulated": True, **rounded}), flush=True)
