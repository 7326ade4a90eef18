"""Compares the loss curves of two runs of train_transformer.py.

    python examples/compare_losses.py cxl.json lax.json --tolerance=0.02

Ends with status 1 if a loss differs by more than the tolerance, relative to the second run's.
"""

import json
import pathlib

import numpy as np
from absl import app, flags

_TOLERANCE = flags.DEFINE_float(
    "tolerance", 0.02, "Largest relative difference that counts as bfloat16 noise."
)


def main(argv: list[str]) -> int:
    if len(argv) != 3:
        raise app.UsageError("give two files that train_transformer.py --json=FILE has written")
    curves = [np.array(json.loads(pathlib.Path(p).read_text())["train_loss"]) for p in argv[1:]]
    if not np.array_equal(curves[0][:, 0], curves[1][:, 0]):
        raise app.UsageError("the runs have losses of different steps")
    difference = np.abs(curves[0][:, 1] / curves[1][:, 1] - 1)
    worst = int(np.argmax(difference))
    print(
        f"{len(difference)} steps, largest relative difference {difference[worst]:.3g} at step"
        f" {int(curves[0][worst, 0])}, mean {difference.mean():.3g}; last losses"
        f" {curves[0][-1, 1]:.4f} and {curves[1][-1, 1]:.4f}"
    )
    return int(difference[worst] > _TOLERANCE.value)


if __name__ == "__main__":
    app.run(main)
