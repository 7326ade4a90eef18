"""The text of a report, for an issue and for the page of reports, from what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# The ways to communicate, and their names. The first is compared with the better of the others.
WAYS = {"pool": "jax_cxl", "nccl": "NCCL by kernels", "copies": "NCCL by copy engines"}
_FACTS = {
    "cpu": "processor",
    "cores": "cores",
    "memory_gib": "memory, GiB",
    "kernel": "Linux",
    "driver": "driver",
    "cuda": "CUDA of the driver",
    "nccl": "NCCL",
    "torch": "PyTorch",
    "jax_cxl": "version of jax_cxl",
    "goes": "its communicator goes",
}
_OF_CARDS = {"memory_gib": "memory of a card, GiB", "capability": "compute capability"}
_LINK = {"to": "to the card", "from": "from the card", "both": "both at once, sum"}

# The least, the median and the most of each way.
Cell = dict[str, list[float]]


def better(cell: Cell) -> str:
    """Returns the better of NCCL's ways."""
    return min((way for way in cell if way != "pool"), key=lambda way: cell[way][1])


def gain(cell: Cell) -> float:
    """Returns how many times as fast as the better of NCCL's ways the pool is."""
    return cell[better(cell)][1] / cell["pool"][1]


def judge(cell: Cell) -> str:
    """Returns faster, slower or level: the pool, against the better of NCCL's ways.

    They are level if one median lies in the range of the other way.
    """
    least, median, most = cell["pool"]
    other_least, other_median, other_most = cell[better(cell)]
    if median < other_least and most < other_median:
        return "faster"
    return "slower" if median > other_most and least > other_median else "level"


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a Markdown table of the medians, with a line for each row."""
    sizes = sorted({size for row in rows for size in row["bytes"]})
    lines = [["", *map(_size, sizes)]]
    for row in rows:
        shown = {size: _shown(_cell(row, i)) for i, size in enumerate(row["bytes"])}
        lines.append([row["call"], *(shown.get(size, "") for size in sizes)])
    return _table(lines)


def wrong(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Returns for each way that was wrong how many elements of which calls were."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for way, counts in row["wrong"].items():
            for i, count in enumerate(counts):
                if count:
                    what = f"{count} elements of {row['call']} of {_size(row['bytes'][i])}"
                    found.setdefault(way, []).append(what)
    return found


def verdict(found: dict[str, Any]) -> str:
    """Returns a paragraph that follows from the figures: where jax_cxl is faster, and advice."""
    failed, bad = found["failed"], wrong(found["results"])
    said = [f"{WAYS[way]} gave WRONG results: {', '.join(what)}." for way, what in bad.items()]
    said += [f"{WAYS[way]} could not be measured: {why}" for way, why in failed.items()]
    calls, models = _compared(found["results"]), _compared(found.get("models", []))
    if calls and not bad:
        said.append("Every element of every result was right.")
    gains: dict[str, list[tuple[float, str]]] = {"faster": [], "slower": [], "level": []}
    for name, cell in calls:
        gains[judge(cell)].append((gain(cell), name))
    faster, slower = len(gains["faster"]), len(gains["slower"])
    best, worst = _some(sorted(gains["faster"], reverse=True)), _some(sorted(gains["slower"]))
    if calls:
        said.append(
            f"Compared with the better of NCCL's two ways, jax_cxl is faster in {faster} of"
            f" {len(calls)} pairs of operation and size{best}, slower in {slower}{worst}, and level"
            " in the rest."
        )
    for name, cell in models:
        said.append(
            f"A {name} takes {cell['pool'][1]:.2f} ms, and {cell[better(cell)][1]:.2f} ms with"
            f" {WAYS[better(cell)]}."
        )
    kinds = {judge(cell) for _, cell in models}
    if "pool" in bad:
        advice = "Do not use jax_cxl on this machine, and report its wrong results"
    elif "pool" in failed or not calls:
        advice = "There is nothing to compare: see what failed"
    elif found.get("goes", "").startswith("to "):
        advice = "jax_cxl passed all calls on to NCCL: mend the cause, and measure again"
    elif any(card.get("peers") for card in found["cards"]):
        advice = (
            "Leave jax_cxl off: the cards have peer access, which was switched off here, and NCCL"
            " with peer access is usually faster"
        )
    elif slower > faster or kinds == {"slower"}:
        advice = "Do not use jax_cxl on this machine"
    elif faster > slower and "slower" not in kinds and "pool" not in found.get("without", []):
        advice = "Use jax_cxl on this machine"
    else:
        advice = "Try jax_cxl with your program: it gains in some cases, and not in others"
    return " ".join([f"**{advice}.**", *said])


def text(found: dict[str, Any]) -> str:
    """Returns the report in Markdown."""
    cards = found["cards"]
    names = [card["name"] for card in cards]
    title = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    pairs = sum(len(card.get("peers", ())) for card in cards)
    facts = {name: found.get(key) for key, name in _FACTS.items()}
    for key, name in _OF_CARDS.items():
        facts[name] = ", ".join(dict.fromkeys(f"{card[key]}" for card in cards if key in card))
    facts["peer access"] = "yes, switched off for this report" if pairs else "none"
    facts["variables"] = " ".join(f"{k}={v}" for k, v in found.get("variables", {}).items())
    parts = [f"### {title}, {found['date']}", found.get("note"), verdict(found)]
    parts.append(
        _table([["", ""], *([name, f"{value}"] for name, value in facts.items() if value)])
    )
    if "links" in found:
        lines = [[link["cards"], *(f"{link[key]}" for key in _LINK)] for link in found["links"]]
        parts.append(_table([["copies of pinned memory, GB/s", *_LINK.values()], *lines]))
    for rows, unit in ((found["results"], "us"), (found.get("models", []), "ms")):
        if ways := [name for way, name in WAYS.items() if any(way in row for row in rows)]:
            parts.append(
                f"Medians in {unit} (rounds: {found['rounds']}) of {', '.join(ways)}, then how many"
                " times as fast jax_cxl is as the better of NCCL's ways (bold: slower):"
            )
            parts.append(table(rows))
    parts.append("\n".join(f"* {line}" for line in found.get("remarks", ())))
    return "\n\n".join(filter(None, parts)) + "\n"


def _compared(rows: list[dict[str, Any]]) -> list[tuple[str, Cell]]:
    """Returns each call of each size that was measured through the pool and by NCCL."""
    cells: Iterator[tuple[str, Cell]] = (
        (f"{row['call']} of {_size(size)}", _cell(row, i))
        for row in rows
        for i, size in enumerate(row["bytes"])
    )
    return [(name, cell) for name, cell in cells if "pool" in cell and len(cell) > 1]


def _some(gains: list[tuple[float, str]]) -> str:
    return f" ({', '.join(f'{name}: {times:.2f}' for times, name in gains[:3])})" if gains else ""


def _cell(row: dict[str, Any], i: int) -> Cell:
    return {way: row[way][i] for way in WAYS if way in row}


def _shown(cell: Cell) -> str:
    medians = [median for _, median, _ in cell.values()]
    times = ", ".join(f"{m:,.{0 if m >= 100 else 1 if m >= 10 else 2}f}" for m in medians)
    if "pool" not in cell or len(cell) == 1:
        return times
    ratio = f"{gain(cell):.2f}"
    return f"{times}: {f'**{ratio}**' if judge(cell) == 'slower' else ratio}"


def _size(size: int) -> str:
    return (
        f"{size >> 20} MiB" if size >= 1 << 20 and not size % (1 << 20) else f"{size / 1024:g} KiB"
    )


def _table(lines: list[list[str]]) -> str:
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
