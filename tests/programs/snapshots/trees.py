"""Saves and restores trees of every kind, and trees in which the processes disagree.

Runs under `jax_cxl.launch`. Unless N is 1, `--step=N` first restores step N - 1, which a job with
other numbers of processes and devices may have saved. Then it saves step N and restores it. With
`--disagree` it also saves trees that must be refused on all processes.
"""

import time

import jax
import numpy as np
import tree_table
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the snapshots.", required=True)
_STEP = flags.DEFINE_integer("step", 1, "The step to save.")
_PREVIOUS = flags.DEFINE_integer("previous", 0, "How many processes saved the previous step.")
_DISAGREE = flags.DEFINE_bool("disagree", False, "Whether to try trees that must be refused.")

# Seconds within which an error of one process is an error on all.
_SOON = 20


def raises(kinds, text, function, *arguments):
    """Asserts that a function raises an error soon."""
    begin = time.monotonic()
    try:
        function(*arguments)
    except kinds as error:
        assert text in str(error), (text, error)
        assert time.monotonic() - begin < _SOON, error
        return
    raise AssertionError(f"no error with {text!r}")


def check_disagreements(snapshots, on, step):
    """Saves trees that all processes must refuse. A good tree can be saved afterwards."""
    odd = on.rank == on.processes - 1
    good = {"w": on.sharded("d"), "n": on.rank * 0}

    def save(tree, at=step):
        snapshots.save(at, tree)
        snapshots.wait()

    for name, tree in tree_table.disagreeing(on).items():
        if name == "other devices" and len(on.all) < 2:
            continue
        raises(jax_cxl.MismatchError, "The first leaf that differs", save, {name: tree})
    raises(jax_cxl.MismatchError, "step", save, good, step + odd)
    for name, tree in tree_table.refused(on).items():
        if odd:
            raises((TypeError, RuntimeError), name, save, {name: tree})
        else:
            raises(jax_cxl.StoreError, f"process {on.processes - 1} could not save", save, good)
    wrong = ValueError if odd else jax_cxl.StoreError
    raises(wrong, "step=-1", save, good, -1 if odd else step)
    copies = on.on(jax.NamedSharding(on.mesh, jax.P()), tree_table.values(seed=on.rank))
    raises(jax_cxl.MismatchError, "['copies']", save, {"copies": copies, "same": on.sharded()})
    assert snapshots.latest() == (step - 1 or None)
    save(good)
    tree_table.assert_same(good, snapshots.restore(step, good))
    # A save needs a greater step than the last one: two saves of a step could not be told apart.
    snapshots.save(step + 1, good)
    raises(ValueError, "greater than", save, good, step + 1)
    raises(jax_cxl.MismatchError, "restore(", snapshots.restore, step + odd, good)
    other = {"w": np.zeros(3, np.float32)} if odd else good
    raises(jax_cxl.StoreError, "['w']", snapshots.restore, step, other)
    other = {"w": {1, 2}} if odd else good
    wrong = TypeError if odd else jax_cxl.StoreError
    raises(wrong, "['w']", snapshots.restore_latest, other)
    assert snapshots.latest() == step + 1
    with jax_cxl.Snapshots(snapshots._names.where, keep=3 if odd else 2) as other:
        raises(jax_cxl.StoreError, "keep=3", other.save, step, good)


def main(_):
    jax_cxl.initialize()
    on, step = tree_table.Devices(), _STEP.value
    tree, own = tree_table.table(on), tree_table.own(on)
    with jax_cxl.Snapshots(_WHERE.value) as snapshots:
        if step > 1:
            tree_table.assert_same(tree, snapshots.restore(step - 1, {"tree": tree})["tree"])
            if _PREVIOUS.value == on.processes:
                tree_table.assert_same(own, snapshots.restore(step - 1, {"own": own})["own"])
            elif _PREVIOUS.value > 1:
                for name in own:
                    arguments = (step - 1, {"own": {name: own[name]}})
                    raises(jax_cxl.StoreError, "different values", snapshots.restore, *arguments)
        snapshots.save(step, {"tree": tree, "own": own})
        snapshots.wait()
        both = snapshots.restore(step, {"tree": tree, "own": own})
        tree_table.assert_same({"tree": tree, "own": own}, both)
    if _DISAGREE.value:
        with jax_cxl.Snapshots(_WHERE.value.replace("?", f".errors{step}?")) as snapshots:
            check_disagreements(snapshots, on, 1)
    print(f"{len(jax.tree.leaves(tree))} leaves of {len(tree)} trees", flush=True)


if __name__ == "__main__":
    app.run(main)
