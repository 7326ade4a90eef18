"""Random trees, and random disagreements between processes, saved and restored by Snapshots.

    python -m jax_cxl.launch -n 2 --devices-per-process 2 -m lab.fuzz.fuzz_trees \\
        --store=file:/dev/shm/trees?size=64MiB --cases=2000

A tree has leaves of many kinds in random containers: arrays on all devices, on some of them or on
devices of one process, replicated arrays, random keys, NumPy arrays and Python values. In some
cases a random process has a different tree: it has one leaf more or less, or differs in order,
dtype, shape, sharding, value, step or type.

A case is right if each process gets back what it saved, to the bit. It is also right if the trees
disagree and all processes get an error. After such an error, the next save has to work. The exit
status is 1 if a case was wrong. `--break` is the negative control: it changes a bit of a restored
array. Delete the file of the store afterwards.
"""

import argparse
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cxl
from tests.programs.snapshots import tree_table

_DTYPES = ("float32", "bfloat16", "int8", "uint16", "bool", "int4", "complex64")
_KINDS = (
    *("global", "replicated", "part", "one device", "local", "weak", "committed", "local mesh"),
    *("key", "global key", "NumPy", "generic", "Python", "empty"),
)
# How the tree of one process differs from the trees of the others.
_DISAGREEMENTS = ("more", "less", "order", "kind", "dtype", "shape", "name", "seed", "step")


def main() -> int:
    """Runs the cases; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", required=True, help="URI of the store: 64 MiB are enough")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--cases", type=int, default=2000, help="trees in all (default: 2000)")
    parser.add_argument("--break", dest="spoil", action="store_true", help="negative control")
    options = parser.parse_args()
    jax_cxl.initialize()
    on = tree_table.Devices()
    begin, refused, wrong, step = time.perf_counter(), 0, 0, 0
    with jax_cxl.Snapshots(options.store) as snapshots:
        for seed in range(options.first, options.first + options.cases):
            case = _Case(on, seed)
            step += 2
            problem = case.run(snapshots, step, options.spoil)
            refused += problem == "refused"
            if problem not in ("", "refused"):
                wrong += 1
                print(f"seed {seed}: {problem}: {case.leaves}, {case.disagreement}", flush=True)
        snapshots.latest()  # All processes have ended their last save.
    seconds = time.perf_counter() - begin
    print(f"{options.cases} cases, {refused} refused, {wrong} wrong, {seconds:.0f} s", flush=True)
    return int(wrong > 0)


class _Case:
    """One tree.

    Attributes:
      leaves: name, kind, dtype, shape and seed of each leaf, as this process has them.
      disagreement: what differs on one process, and the number of this process; None if all
        processes have the same tree.
    """

    def __init__(self, on: tree_table.Devices, seed: int):
        self._on, self._rng = on, np.random.default_rng(seed)
        self.leaves = [self._leaf(i) for i in range(self._rng.integers(1, 8))]
        self.disagreement: Any = None
        self._step = 0
        if on.processes > 1 and self._rng.integers(5) < 2:
            process = int(self._rng.integers(on.processes))
            what = str(self._rng.choice(_DISAGREEMENTS))
            self.disagreement = what, process
            changed = self._changed(what)  # All processes draw the same numbers.
            if on.rank == process:
                self.leaves = changed
                self._step = int(what == "step")
        self._nested = int(self._rng.integers(4))

    def _leaf(self, number: int) -> list[Any]:
        n = len(self._on.all)
        shape = [(n * 2, n * 3), (n,), (n, 2, n), (n * 4, 0)][self._rng.integers(4)]
        kind, dtype = str(self._rng.choice(_KINDS)), str(self._rng.choice(_DTYPES))
        return [f"leaf{number}", kind, dtype, shape, int(self._rng.integers(1 << 30))]

    def _changed(self, what: str) -> list[list[Any]]:
        leaves = [list(leaf) for leaf in self.leaves]
        at = int(self._rng.integers(len(leaves)))
        other = self._leaf(99)
        if what == "more":
            leaves.insert(at, other)
        elif what == "less":
            del leaves[at]
        elif what == "order":
            leaves = leaves[1:] + leaves[:1]
            leaves = [[old[0], *new[1:]] for old, new in zip(self.leaves, leaves, strict=True)]
        elif what in ("name", "kind", "dtype", "shape", "seed"):
            field = ("name", "kind", "dtype", "shape", "seed").index(what)
            leaves[at][field] = other[field]
        return leaves

    def run(self, snapshots: jax_cxl.Snapshots, step: int, spoil: bool) -> str:
        """Saves and restores the tree.

        Args:
          snapshots: where to save it.
          step: the step to save it under.
          spoil: change a bit of what was restored (negative control).

        Returns:
          "" if the tree came back, "refused" if the trees disagreed and the save failed as it has
          to, or else what was wrong.
        """
        tree = self._tree()
        begin = time.monotonic()
        try:
            snapshots.save(step + self._step, tree)
            snapshots.wait()
        except (jax_cxl.MismatchError, jax_cxl.StoreError) as error:
            if self.disagreement is None:
                return f"refused: {error}"
            if time.monotonic() - begin > 60:
                return f"refused after {time.monotonic() - begin:.0f} s"
            tree, refused = [np.full(3, step)], True
            snapshots.save(step + 1, tree)
            snapshots.wait()
            step += 1
        else:
            refused = False
        found = snapshots.restore(step, tree)
        if spoil:
            found = jax.tree.map(_spoiled, found)
        try:
            tree_table.assert_same(tree, found)
        except AssertionError as error:
            return f"silently wrong: {error}"
        return "refused" if refused else ""

    def _tree(self) -> Any:
        made = {leaf[0]: self._make(*leaf[1:]) for leaf in self.leaves}
        return [made, list(made.values()), ({"a": made}, None), [[made], []]][self._nested]

    def _make(self, kind: str, dtype: str, shape: tuple[int, ...], seed: int) -> Any:
        on, rng = self._on, np.random.default_rng(seed)
        x = rng.integers(0, 2, shape).astype(jnp.dtype(dtype))
        own = np.random.default_rng((seed, on.rank)).integers(0, 2, shape).astype(x.dtype)
        spec = [("d",), (None,) * (len(shape) - 1) + ("d",)][rng.integers(2)]
        if kind == "global" and 0 not in shape:
            return on.sharded(*spec, x=x)
        if kind in ("replicated", "global"):
            return on.sharded(x=x)
        if kind in ("part", "one device"):
            count = 1 if kind == "one device" else int(rng.integers(1, len(on.all) + 1))
            return on.part(rng.permutation(on.all)[:count], x=x)
        if kind == "local mesh":
            return on.part(on.local, "d", x=own) if 0 not in shape else own
        if kind == "global key":
            data = on.sharded(x=rng.integers(0, 99, (3, 2)).astype(np.uint32))
            return jax.random.wrap_key_data(data, impl="threefry2x32")
        simple = {
            "local": lambda: jnp.asarray(own),
            "weak": lambda: jnp.asarray(on.rank + 0.5),
            "committed": lambda: jax.device_put(own, on.local[seed % len(on.local)]),
            "key": lambda: jax.random.key(on.rank, impl=("rbg", "threefry2x32")[seed % 2]),
            "NumPy": lambda: own,
            "generic": lambda: np.float64(on.rank),
            "Python": lambda: [True, 1, 1.0, "1", None, -(1 << 70)][seed % 6],
            "empty": lambda: [{}, [], ()][seed % 3],
        }
        return simple[kind]()


def _spoiled(x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.size:
        changed = x.copy()
        changed.reshape(-1).view(np.uint8)[0] ^= 1
        return changed
    return x


if __name__ == "__main__":
    sys.exit(main())
