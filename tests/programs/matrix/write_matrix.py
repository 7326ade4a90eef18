"""Runs the matrix in all layouts and writes the tables of docs/matrix.md."""

import json
import pathlib
import sys
import tempfile

from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "helpers"))

import job
from matrix import document, layouts
from matrix.transformations import TRANSFORMATIONS

from jax_cxl._commands.measuring import results_file

_WRITE = flags.DEFINE_string("write", "docs/data/matrix.json", "Where the tables go.")
_RECORDS = flags.DEFINE_string("records", "", "Folder of results to write from, or to keep.")


def main(_) -> None:
    folder = pathlib.Path(_RECORDS.value or tempfile.mkdtemp())
    records = []
    for layout in layouts.LAYOUTS:
        results = folder / layout.folder
        if not list(results.glob("*.json")):
            results.mkdir(parents=True, exist_ok=True)
            done = job.run(
                *("matrix/run_matrix.py", f"--output={results}"),
                **layout.options(),
                environment=layouts.ENVIRONMENT,
                timeout=3600,
            )
            if done.returncode:
                sys.exit(done.stderr)
        records += [{**r, "layout": layout.name} for r in layouts.read(results)]
    (folder / "all.json").write_text(json.dumps(records))
    derivatives = {t.name for t in TRANSFORMATIONS if t.derivative}
    results_file.write(pathlib.Path(_WRITE.value), document.tables(records, derivatives))


if __name__ == "__main__":
    app.run(main)
