"""One job of a test of the store: it publishes versions, or reads what another job publishes.

Runs under `jax_cxl.launch`. A reader reads one newer version after another until it has read
version `--last`; it may skip versions. The shardings change from version to version.
"""

import pathlib
import sys

import jax
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import resharded_trees

import jax_cxl

_WHERE = flags.DEFINE_string("where", None, "URI of the store.", required=True)
_PUBLISH = flags.DEFINE_bool("publish", False, "Whether to publish, or to read.")
_FIRST = flags.DEFINE_integer("first", 0, "The first version.")
_LAST = flags.DEFINE_integer("last", 10, "The last version.")


def _publish(store, mesh):
    for version in range(_FIRST.value, _LAST.value + 1):
        assert store.publish("a", resharded_trees.tree(mesh, version)) == version
    store.flush("a")


def _read(store, mesh):
    last, result = -1, None
    while last < _LAST.value:
        like = resharded_trees.like(mesh, last)
        result = store.read("a", like, newer_than=last, timeout=100, into=result)
        version, tree = result
        assert version > last
        resharded_trees.check(tree, version)
        last = version


def main(_):
    jax_cxl.initialize()
    with jax_cxl.Store(_WHERE.value) as store:
        (_publish if _PUBLISH.value else _read)(store, resharded_trees.mesh_of_all())
    print(f"done with {jax.process_index()}")


if __name__ == "__main__":
    app.run(main)
