"""Draws the last step in profiles of jax.profiler, for docs/profiler.md.

The picture shows the XLA operations of each process.

python docs/_site/draw_profile.py FOLDER PICTURE.png

FOLDER has a folder for each process, as `jax.profiler.trace(f"{FOLDER}/{jax.process_index()}")`
writes it. Needs matplotlib.
"""

import gzip
import json
import pathlib
import re
import sys
from typing import Any

import matplotlib

_COLLECTIVE = re.compile(r"(psum|all_gather|all-gather|all-reduce)(\.\d+)?")
_OURS, _OTHERS = "#0072B2", "#BBBBBB"


def main(folder: pathlib.Path, picture: pathlib.Path) -> None:
    matplotlib.use("agg")
    from matplotlib import pyplot

    processes = sorted(path for path in folder.iterdir() if path.is_dir())
    figure, axes = pyplot.subplots(
        len(processes), 1, figsize=(9, 1.6 * len(processes)), sharex=True, layout="constrained"
    )
    for process, axis in zip(processes, axes, strict=True):
        operations = _last_step(process)
        threads = sorted({each["thread"] for each in operations}, reverse=True)
        first = operations[0]["ts"]
        for each in operations:
            start, length = (each["ts"] - first) / 1e3, each["dur"] / 1e3
            row = threads.index(each["thread"])
            color = _OURS if _COLLECTIVE.fullmatch(each["name"]) else _OTHERS
            # The bar has an edge, so that even the shortest bar is visible.
            axis.barh(row, length, left=start, height=0.5, color=color, edgecolor=color, lw=2)
            axis.annotate(each["name"], (start, row + 0.3), fontsize=9, rotation=12)
        axis.set_yticks(range(len(threads)), threads)
        axis.set_ylim(-0.5, len(threads))
        axis.margins(x=0.1)
        axis.set_title(f"process {process.name}", loc="left", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    axes[-1].set_xlabel("ms since the first operation of the step, by each process's own clock")
    figure.savefig(picture, metadata={"Software": None})
    pyplot.close(figure)


def _last_step(process: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the XLA operations of the last execution of a module, ordered by their starts."""
    profile = max(process.glob("plugins/profile/*/*.trace.json.gz"))
    events = json.loads(gzip.decompress(profile.read_bytes()))["traceEvents"]
    threads = {
        event["tid"]: re.sub(r"tf_(\w+)/.*", r"\1", event["args"]["name"])
        for event in events
        if event.get("name") == "thread_name"
    }
    operations = [
        {**event, "thread": threads[event["tid"]]}
        for event in events
        if "hlo_op" in event.get("args", {})
    ]
    last = max(operations, key=lambda each: each["ts"])["args"]["run_id"]
    mine = [each for each in operations if each["args"]["run_id"] == last]
    return sorted(mine, key=lambda each: each["ts"])


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:3]))
