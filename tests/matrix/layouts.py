"""How four ranks are spread over processes, and what the processes found."""

import dataclasses
import json
import pathlib
from typing import Any

# Jobs spend most of their time on compiling the code around the collectives. Without most
# optimizations XLA compiles it faster.
ENVIRONMENT = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@dataclasses.dataclass(frozen=True)
class Layout:
    """Processes that all have the same number of devices."""

    processes: int
    devices_per_process: int
    sixths: tuple[int, ...]  # of the cells

    @property
    def name(self) -> str:
        return f"{self.processes} × {self.devices_per_process}"

    @property
    def folder(self) -> str:
        return f"{self.processes}x{self.devices_per_process}"

    def options(self) -> dict[str, int]:
        """Returns the layout as options of `job.run`."""
        return {"processes": self.processes, "devices_per_process": self.devices_per_process}


# Each process compiles all programs, so layouts with more processes run fewer of the cells.
LAYOUTS = (Layout(1, 4, (0, 1, 2, 3)), Layout(2, 2, (4,)), Layout(4, 1, (5,)))


def read(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns a record for each cell. Its result is "ok" only if it is so in all processes."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    merged = []
    # Stops after the last cell that all processes have reached.
    for records in zip(*files, strict=False):
        keys = [{k: v for k, v in record.items() if k != "result"} for record in records]
        if any(key != keys[0] for key in keys):
            raise ValueError(f"processes ran different cells: {keys}")
        merged.append(max(records, key=lambda record: record["result"] != "ok"))
    return merged
