"""Times publishing and reading a tree in which one layer, or everything, has changed.

    python benchmarks/store/changed.py --layers=16 --mib=16

Each turn publishes a tree in which all layers have changed, and one in which one layer has changed.
`publish` is the time of `Store.publish` and `flush`. `into` is the time to read the new version
into the arrays of the previous one, and `read` the time to read all of it into new arrays.
Times are in seconds.
"""

import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import app, flags

import jax_cxl

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/helpers"))
import shared_folder

_LAYERS = flags.DEFINE_integer("layers", 16, "layers")
_MIB = flags.DEFINE_integer("mib", 16, "MiB of a layer")
_TURNS = flags.DEFINE_integer("turns", 9, "turns")


def _seconds(act: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = act()
    return time.perf_counter() - begin, result


def main(_: list[str]) -> None:
    rng = np.random.default_rng(0)
    tree = {f"layer{n}": rng.random(_MIB.value << 18, np.float32) for n in range(_LAYERS.value)}
    found: dict[str, list[float]] = {}
    with shared_folder.folder("jax_cxl_changed.") as folder:
        where = f"file:{folder}/a?size={4 * _LAYERS.value * _MIB.value + 64}MiB"
        with jax_cxl.Store(where) as store, jax_cxl.Store(where) as reader:

            def publish() -> None:
                store.publish("model", tree)
                store.flush("model")

            for _ in range(3):  # The job has then written each area.
                publish()
            last = reader.read("model")
            for turn in range(-1, _TURNS.value):
                for what, layers in (("all", tuple(tree)), ("one layer", ("layer0",))):
                    # The store keeps several versions, each in an area. Make all areas hold equal
                    # arrays, so that both cases start alike.
                    for _ in range(3):
                        publish()
                    last = reader.read("model", into=last)
                    for layer in layers:
                        tree[layer] += 1
                    times = {"publish": _seconds(publish)[0]}
                    times["into"], last = _seconds(lambda: reader.read("model", into=last))  # noqa: B023
                    times["read"], whole = _seconds(lambda: reader.read("model"))
                    for version in (last, whole):
                        assert all(np.array_equal(version.tree[k], tree[k]) for k in tree)
                    if turn >= 0:  # The first turn makes pages.
                        for name, value in times.items():
                            found.setdefault(f"{what}: {name}", []).append(value)
    for name, values in found.items():
        row = {"seconds": round(statistics.median(values), 4), "least": round(min(values), 4)}
        print(json.dumps({"what": name} | row | {"most": round(max(values), 4)}), flush=True)


if __name__ == "__main__":
    app.run(main)
