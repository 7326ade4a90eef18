"""Restores the snapshot of the previous job, checks every bit, and saves the next one.

Runs under `jax_cxl.launch`. Unless N is 1, `--step=N` first restores step N - 1. Then it saves step
N. The next job may have other numbers of processes and devices. The shardings change with each
step, too.
"""

import pathlib
import sys

import jax
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import resharded_trees

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the snapshots.", required=True)
_PARITY = flags.DEFINE_integer("parity", 0, "As for Snapshots.")
_STEP = flags.DEFINE_integer("step", 1, "The step to save.")


def main(_):
    jax_cxl.initialize()
    mesh = resharded_trees.mesh_of_all()
    step = _STEP.value
    with jax_cxl.Snapshots(_WHERE.value, parity=_PARITY.value) as snapshots:
        if step > 1:
            assert snapshots.latest() == step - 1, snapshots.latest()
            # The arrays get other shardings than those with which they were saved.
            found = snapshots.restore(step - 1, resharded_trees.like(mesh, step))
            resharded_trees.check(found, step - 1)
        snapshots.save(step, resharded_trees.tree(mesh, step))
        snapshots.wait()
    print(f"step {step} saved by {jax.device_count()} devices", flush=True)


if __name__ == "__main__":
    app.run(main)
