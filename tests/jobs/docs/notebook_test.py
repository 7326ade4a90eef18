"""Runs the notebooks of the documents, as a hosted notebook does."""

import ast
import os
import pathlib
import re
import tempfile
from unittest import mock

from absl.testing import absltest

try:
    import nbclient
    import nbformat
except ImportError:
    nbclient = None

_NOTEBOOKS = pathlib.Path(__file__).parents[3] / "docs/notebooks"

# XLA compiles faster without most optimizations.
_QUICK = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@absltest.skipIf(nbclient is None, "nbclient is not installed: pip install '.[test]'")
class NotebookTest(absltest.TestCase):
    def test_syntax(self):
        notebook = nbformat.read(_NOTEBOOKS / "first_program.ipynb", as_version=4)
        nbformat.validate(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                ast.parse(re.sub(r"(?m)^%.*", "", cell.source))

    def test_first_program(self):
        notebook = nbformat.read(_NOTEBOOKS / "first_program.ipynb", as_version=4)
        for cell in notebook.cells:
            cell.pop("outputs", None)
            if cell.cell_type == "code":
                cell["outputs"] = []
        folder = self.enter_context(tempfile.TemporaryDirectory())
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX")}
        with mock.patch.dict(os.environ, kept | _QUICK, clear=True):
            client = nbclient.NotebookClient(
                notebook, timeout=280, resources={"metadata": {"path": folder}}
            )
            client.execute()  # raises what a cell raises
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        text = "".join(str(output.get("text", output.get("data"))) for output in outputs)
        for expected in ("process 1 of 2", "array(28., dtype=float32)", "begins at step 3", "15.0"):
            self.assertIn(expected, text)
        self.assertTrue(any("image/png" in output.get("data", {}) for output in outputs))


if __name__ == "__main__":
    absltest.main()
