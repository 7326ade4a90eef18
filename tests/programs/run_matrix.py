"""Runs the matrix of tests/matrix on the ranks of one layout, under `jax_cxl.launch`.

Each process writes its results to `--output`/<process>.json.
"""

import json
import pathlib
import sys

import jax
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from matrix import cells

import jax_cxl

_OUTPUT = flags.DEFINE_string("output", None, "Existing folder for the results.", required=True)
_PART = flags.DEFINE_integer("part", None, "Which part of the cells runs; by default all.")
_OPERATION = flags.DEFINE_string("operation", "", "Only operations whose names begin so.")


def main(_) -> None:
    jax.config.update("jax_enable_x64", True)
    jax_cxl.initialize()
    chosen = cells.all_cells() if _PART.value is None else cells.some_cells(_PART.value)
    wanted = [cell for cell in chosen if cell.operation.name.startswith(_OPERATION.value)]
    records = cells.run(wanted)
    path = pathlib.Path(_OUTPUT.value) / f"{jax.process_index()}.json"
    path.write_text(json.dumps(records))


if __name__ == "__main__":
    app.run(main)
