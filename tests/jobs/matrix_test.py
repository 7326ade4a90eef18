"""Runs a part of the matrix in each layout. docs/matrix.md has all of it."""

import pathlib
import re
import tempfile

import job
import pytest
from absl.testing import absltest, parameterized
from matrix import cells, layouts


class MatrixTest(parameterized.TestCase):
    def test_some_transformations(self):
        (layout,) = (each for each in layouts.LAYOUTS if each.folder == "2x2")
        self.check_layout(layout, ("value", "grad", "vmap", "scan"))

    @parameterized.named_parameters((layout.folder, layout) for layout in layouts.LAYOUTS)
    @pytest.mark.long
    def test_layout(self, layout):
        self.check_layout(layout)

    def check_layout(self, layout, transformations=()):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        done = job.run(
            "matrix/run_matrix.py",
            f"--output={folder}",
            f"--sixths={','.join(map(str, layout.sixths))}",
            f"--transformations={','.join(transformations)}",
            "--operations_per_program=20",
            environment=layouts.ENVIRONMENT,
            quick=False,  # The cells choose for themselves.
            **layout.options(),
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        records = layouts.read(folder)
        chosen = [
            cell
            for cell in cells.some_cells(layout.sixths)
            if not transformations or cell.transformation.name in transformations
        ]
        self.assertEqual(len(records), len(chosen))
        unexpected = []
        for cell, record in zip(chosen, records, strict=True):
            self.assertEqual(cell.key(), {k: v for k, v in record.items() if k != "result"})
            refusal = cells.refusal(cell)
            if not re.fullmatch(f"{refusal}.*" if refusal else cells.OK, record["result"]):
                unexpected.append(record)
        self.assertEqual(unexpected, [])

    def test_parts_have_all_pairs(self):
        parts = [cell for layout in layouts.LAYOUTS for cell in cells.some_cells(layout.sixths)]
        every = list(cells.all_cells())
        for pair in (
            lambda c: (c.operation.name, c.dtype),
            lambda c: (c.operation.name, c.transformation.name),
            lambda c: (c.dtype, c.transformation.name),
        ):
            self.assertEqual({pair(c) for c in parts}, {pair(c) for c in every})


if __name__ == "__main__":
    absltest.main()
