"""Draws results files of `python -m jax_cxl bench`.

python -m lab.figures.collectives FILE.json PICTURE.png
"""

import json
import pathlib
import sys
from typing import Any

import matplotlib

from lab.figures import plotting


def draw(found: dict[str, Any], path: pathlib.Path) -> None:
    """Draws bus bandwidth over size: a panel for each operation, a curve for each backend."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    rows = [row for row in found["results"] if row["bytes"]]  # A barrier has no bandwidth.
    ops = list(dict.fromkeys(row["op"] for row in rows))
    names = list(dict.fromkeys(row["backend"] for row in rows))
    figure, axes = pyplot.subplots(
        *(1, len(ops)),
        figsize=(max(2.6 * len(ops), 5), 3.6),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for panel, op in zip(axes[0], ops, strict=True):
        for name in names:
            mine = [r for r in rows if (r["op"], r["backend"]) == (op, name)]
            sizes = [r["bytes"] for r in mine]
            plotting.curve(panel, name, sizes, [r["busbw_gbps"] for r in mine], marker="o")
        panel.set(title=op, yscale="log")
        plotting.size_ticks(panel, sorted({row["bytes"] for row in rows if row["op"] == op}))
        panel.grid(alpha=0.3)
    axes[0][0].set_ylabel("bus bandwidth, GB/s")
    plotting.legend(figure, axes[0][0])
    ranks = rows[0]["ranks"]
    figure.suptitle(f"{ranks} ranks, emulated pool in shared memory of one machine")
    plotting.save(figure, path)


if __name__ == "__main__":
    results, picture = map(pathlib.Path, sys.argv[1:])
    draw(json.loads(results.read_text()), picture)
