"""Saves a tree of small arrays several times, and checks each snapshot.

Runs under `jax_cxl.launch`. From the third save on, compiled programs join the arrays into larger
ones before they are saved.
"""

import jax
import numpy as np
from absl import app, flags

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the snapshots.", required=True)


def main(_):
    jax_cxl.initialize()
    mesh = jax_cxl.make_mesh((jax.device_count(),), ("x",))
    rows = np.arange(4.0 * jax.device_count(), dtype=np.float32).reshape(-1, 2)
    specs = [jax.P("x"), jax.P(), jax.P(None)]
    tree = [jax.device_put(rows + n, jax.NamedSharding(mesh, specs[n % 3])) for n in range(300)]
    tree += [jax.device_put(np.int32(n + jax.process_index())) for n in range(300)]
    with jax_cxl.Snapshots(_WHERE.value) as snapshots:
        for step in range(5):
            snapshots.save(step, tree)
            for saved, found in zip(tree, snapshots.restore(step, tree), strict=True):
                for a, b in zip(saved.addressable_shards, found.addressable_shards, strict=True):
                    np.testing.assert_array_equal(a.data, b.data)
            tree = [x + 1 for x in tree]
            selection = snapshots._publisher._selection[2]
            if selection._joiner is not None:
                selection._joiner._groups.result()  # Programs have been compiled.
        views = [None] * len(selection._chosen.shards)
        joined = selection._joiner.join(dict(enumerate(tree)), views)
    print(f"joined {joined} arrays", flush=True)


if __name__ == "__main__":
    app.run(main)
