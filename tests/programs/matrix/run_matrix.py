"""Runs the matrix of tests/matrix on the ranks of one layout, under `jax_cxl.launch`.

Each process writes its results to `--output`/<process>.json, after every program, so that an
interrupted run leaves its results so far.
"""

import json
import pathlib
import sys

import jax
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "helpers"))

from matrix import cells

import jax_cxl

_OUTPUT = flags.DEFINE_string("output", None, "Existing folder for the results.", required=True)
_SIXTHS = flags.DEFINE_list("sixths", [], "Which parts of some cells run; by default all cells.")
_OPERATION = flags.DEFINE_string("operation", "", "Only operations whose names begin so.")
_OPERATIONS_PER_PROGRAM = flags.DEFINE_integer(
    "operations_per_program", 1, "How many are compiled together.", lower_bound=1
)
_TRANSFORMATIONS = flags.DEFINE_list("transformations", [], "Only these; by default all.")
_DTYPES = flags.DEFINE_list("dtypes", [], "Only these; by default all.")


def main(_) -> None:
    jax.config.update("jax_enable_x64", True)
    jax_cxl.initialize()
    sixths = [int(sixth) for sixth in _SIXTHS.value]
    chosen = cells.some_cells(sixths) if sixths else cells.all_cells()
    wanted = [
        cell
        for cell in chosen
        if cell.operation.name.startswith(_OPERATION.value)
        and cell.transformation.name in (_TRANSFORMATIONS.value or [cell.transformation.name])
        and cell.dtype in (_DTYPES.value or [cell.dtype])
    ]
    path = pathlib.Path(_OUTPUT.value) / f"{jax.process_index()}.json"
    records: list[dict] = []
    batches = list(cells.by_operation(wanted))
    for i in range(0, len(batches), _OPERATIONS_PER_PROGRAM.value):
        together = batches[i : i + _OPERATIONS_PER_PROGRAM.value]
        records += cells.run([cell for batch in together for cell in batch])
        part = path.with_suffix(".part")
        part.write_text(json.dumps(records))
        part.rename(path)


if __name__ == "__main__":
    app.run(main)
