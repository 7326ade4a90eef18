"""The tables of docs/matrix.md, from the results of the cells."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from matrix import cells

Record = dict[str, Any]

_HEAD = """\
# What works with what

The tables compare every operation with NumPy, for every dtype and under every transformation.
Dtype, shape and every bit must be equal. Sums of floats with less than 32 bits must be added in
rank order in float32 and rounded once. `python tests/programs/matrix/write_matrix.py` wrote this
page from its results on four ranks. It ran all cells in each of the layouts below (processes ×
devices per process). It ran float32 both with and without `check_vma`, and alternated between the
two for other dtypes. `tests/jobs/matrix_test.py` runs a part of the cells in each layout. Together
these parts cover every operation with every transformation in float32, every operation with every
dtype, and every dtype with every transformation.

{layouts}

✓: the result is right. A number: not supported; the note with this number shows the error. Both:
it depends on something that the table does not show.
"""

_NOTES = """\
## Notes

These are the errors that JAX shows, with `<dtype>` in place of the dtype.

"""

_TAIL = """
`float8_e8m0fnu` has no zero. Where other dtypes get zeros (on a rank without a source in
`ppermute`, or on ranks other than the root in `reduce`), the result is its smallest value or NaN.
"""


class _Notes:
    """Numbers the errors in the order in which the tables name them."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def number(self, result: str, dtype: str) -> int:
        text = re.sub(rf"\b{dtype}\b", "<dtype>", result)
        text = re.sub(r"int/bool|int/<dtype>", "int/bool", text)
        text = re.sub(r"(got|expects|dtype|of dtype) \w+\d\w*", r"\1 <dtype>", text)
        if len(text) > 260:
            text = text[:260].rsplit(" ", 1)[0] + " ..."
        return self.texts.setdefault(text, len(self.texts) + 1)

    def mark(self, records: Iterable[Record]) -> str:
        """Returns the text of a table's cell: a check mark, numbers of notes, or both."""
        marks = set()
        for record in records:
            right = record["result"] == cells.OK
            marks.add(0 if right else self.number(record["result"], record["dtype"]))
        return " ".join("✓" if mark == 0 else str(mark) for mark in sorted(marks))


def _table(
    records: list[Record], notes: _Notes, rows: str, columns: str, keep: Callable = lambda _: True
) -> str:
    chosen = [record for record in records if keep(record)]
    names, heads = (list(dict.fromkeys(r[key] for r in chosen)) for key in (rows, columns))
    found: dict[tuple[str, str], list[Record]] = {}
    for record in chosen:
        found.setdefault((record[rows], record[columns]), []).append(record)
    lines = [f"| {rows} | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name in names:
        marks = (notes.mark(found.get((name, head), [])) or "not run" for head in heads)
        lines.append(f"| {name} | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"


def write(records: list[Record], derivatives: set[str]) -> str:
    """Returns the document.

    Args:
      records: records of all cells in all layouts; the field `layout` tells which.
      derivatives: the names of transformations that need a derivative.
    """
    order = {op.name: i for i, op in enumerate(cells.OPERATIONS)}
    records = sorted(records, key=lambda record: order[record["operation"]])
    counts: dict[str, list[int]] = {}
    for record in records:
        count = counts.setdefault(record["layout"], [0, 0, 0])
        wrong = record["result"].startswith(cells.WRONG)
        count[0 if record["result"] == cells.OK else 2 if wrong else 1] += 1
    layouts = "| layout | right | refused | wrong |\n|---|---|---|---|\n" + "\n".join(
        f"| {name} | {right} | {refused} | {wrong} |"
        for name, (right, refused, wrong) in sorted(counts.items())
    )
    notes = _Notes()
    parts = [_HEAD.format(layouts=layouts)]
    parts.append("## Operation and transformation, over all dtypes\n")
    parts.append(_table(records, notes, "operation", "transformation"))
    parts.append("## Dtype and transformation, over all operations\n")
    parts.append(_table(records, notes, "dtype", "transformation"))
    parts.append("## Dtype and operation, without derivatives\n")
    values = lambda r: r["transformation"] not in derivatives  # noqa: E731
    parts.append(_table(records, notes, "dtype", "operation", values))
    parts.append("## Dtype and operation, with derivatives\n")
    parts.append(_table(records, notes, "dtype", "operation", lambda r: not values(r)))
    lines = [f"{number}. `{text}`" for text, number in notes.texts.items()]
    return "\n".join(parts) + "\n" + _NOTES + "\n".join(lines) + "\n" + _TAIL
