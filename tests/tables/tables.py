"""Stores for tests of tables, and tables of all dtypes."""

import os
import pathlib
import tempfile

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import parameterized

import jax_cxl

_MIB = 1 << 20

DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float16", "bfloat16", "float32", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int4", "uint4", "float4_e2m1fn"),
)


def dtype_of(name: str) -> np.dtype:
    """Returns a dtype by its name."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def random_rows(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Returns rows of random bits; elements of less than a byte get small numbers."""
    rng = np.random.default_rng(seed)
    kind = dtype_of(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.itemsize == 1 and jnp.finfo(kind).bits < 8 if "float" in dtype else "int4" in dtype:
        return rng.integers(0, 6, shape).astype(np.float32).astype(kind)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * kind.itemsize), kind).reshape(shape)


def bits(x: object) -> bytes:
    """Returns the bytes of an array."""
    return np.asarray(x).tobytes()


class StoreCase(parameterized.TestCase):
    """A test with an empty store of its own."""

    def setUp(self):
        super().setUp()
        parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
        folder = tempfile.TemporaryDirectory(prefix="jax_cxl_test_table.", dir=parent)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.where = f"file:{folder.name}/a?size={96 * _MIB}"
        self.store = jax_cxl.Store(self.where)

    def create(self, rows, **options) -> jax_cxl.Table:
        """Makes a table of the test's name."""
        name = options.pop("name", "table")
        return jax_cxl.Table.create(self.store, name, rows, **options)

    def assert_bits(self, found, expected, message=""):
        """Compares arrays bit for bit."""
        self.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape), message)
        self.assertEqual(bits(found), bits(expected), message)


def expected_take(rows: np.ndarray, ids, mode: str, fill_value=None):
    """Returns what `jnp.take` would return if the whole table were an array of JAX."""
    ids = np.asarray(ids).astype(np.int64)
    count = len(rows)
    if mode == "clip":
        return rows[np.clip(ids, 0, count - 1)]
    at = np.where(ids < 0, ids + count, ids)
    inside = (at >= 0) & (at < count)
    out = np.zeros((*ids.shape, *rows.shape[1:]), rows.dtype)
    out[inside] = rows[at[inside]]
    if fill_value is None and jnp.issubdtype(rows.dtype, np.inexact):
        fill_value = np.nan  # There are several NaNs.
    elif fill_value is None:
        none = jnp.zeros((1,), rows.dtype)
        fill_value = np.asarray(jnp.take(none, jnp.array([5]), mode="fill"))[0]
    out[~inside] = np.asarray(fill_value).astype(rows.dtype)
    return out
