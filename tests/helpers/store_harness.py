"""A store in a file of /dev/shm for each test."""

import os
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import parameterized

import jax_cxl

MIB = 1 << 20


def tree(version: int):
    rng = np.random.default_rng(version)
    return {
        "w": jnp.asarray(rng.standard_normal((700, 1000), np.float32)),
        "layers": [{"b": jnp.asarray(rng.standard_normal(5).astype(ml_dtypes.bfloat16))}],
        "count": jnp.int32(version),
        "key": jax.random.key(version),
        "host": rng.integers(0, 9, 3),
        "step": version,
        "none": None,
    }


class StoreTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
        folder = tempfile.TemporaryDirectory(prefix="jax_cxl_test_store.", dir=parent)
        self.addCleanup(folder.cleanup)
        self.where = f"file:{folder.name}/a?size={64 * MIB}"
        self.path = pathlib.Path(folder.name, "a")

    def open(self) -> jax_cxl.Store:
        return jax_cxl.Store(self.where)

    def publish(self, store, name, version, **options):
        store.publish(name, tree(version), version=version, **options)
        store.flush(name)

    def assert_tree(self, found, version):
        expected = tree(version)
        is_leaf = lambda x: x is None  # noqa: E731
        self.assertEqual(
            jax.tree.structure(found, is_leaf=is_leaf),
            jax.tree.structure(expected, is_leaf=is_leaf),
        )
        for (path, a), b in zip(
            jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True
        ):
            name = jax.tree_util.keystr(path)
            if hasattr(a, "dtype") and jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            self.assertEqual(np.asarray(a).dtype, np.asarray(b).dtype, name)
            self.assertEqual(np.asarray(a).tobytes(), np.asarray(b).tobytes(), name)
