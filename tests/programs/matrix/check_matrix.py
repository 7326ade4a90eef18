"""Prints the results of run_matrix.py: a JSON object with counts and every unexpected cell."""

import json
import pathlib
import re
import sys

from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "helpers"))

from matrix import cells, layouts

_RECORDS = flags.DEFINE_string("records", None, "Folder with the results.", required=True)


def main(_) -> None:
    refusals = {tuple(cell.key().values()): cells.refusal(cell) for cell in cells.all_cells()}
    found = {"cells": 0, "right": 0, "refused": 0}
    unexpected = []
    for record in layouts.read(pathlib.Path(_RECORDS.value)):
        result = record.pop("result")
        refusal = refusals[tuple(record.values())]
        found["cells"] += 1
        if not re.fullmatch(f"{refusal}.*" if refusal else cells.OK, result):
            unexpected.append(record | {"result": result[:400]})
        else:
            found["refused" if refusal else "right"] += 1
    print(json.dumps(found | {"unexpected": unexpected}))


if __name__ == "__main__":
    app.run(main)
