"""The tables of docs/matrix.md (docs/data/matrix.json), from the results of the cells."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from matrix import cells

Record = dict[str, Any]

Table = list[list[str]]


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
) -> Table:
    chosen = [record for record in records if keep(record)]
    names, heads = (list(dict.fromkeys(r[key] for r in chosen)) for key in (rows, columns))
    found: dict[tuple[str, str], list[Record]] = {}
    for record in chosen:
        found.setdefault((record[rows], record[columns]), []).append(record)
    table = [[rows, *heads]]
    for name in names:
        table.append(
            [name, *(notes.mark(found.get((name, head), [])) or "not run" for head in heads)]
        )
    return table


def tables(records: list[Record], derivatives: set[str]) -> dict[str, Table]:
    """Returns the tables by their names. The page has a mark with the name of each.

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
    notes = _Notes()
    values = lambda r: r["transformation"] not in derivatives  # noqa: E731
    found = {
        "layouts": [
            ["layout", "right", "refused", "wrong"],
            *([name, *map(str, count)] for name, count in sorted(counts.items())),
        ],
        "operations": _table(records, notes, "operation", "transformation"),
        "dtypes": _table(records, notes, "dtype", "transformation"),
        "without derivatives": _table(records, notes, "dtype", "operation", values),
        "with derivatives": _table(
            records, notes, "dtype", "operation", lambda record: not values(record)
        ),
    }
    texts = [[str(number), f"`{text}`"] for text, number in notes.texts.items()]
    return {**found, "notes": [["note", "error"], *texts]}
