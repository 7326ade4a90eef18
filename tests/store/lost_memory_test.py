"""The file of a store is cut short, deleted or replaced while it is open: no call is wrong."""

import functools
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import store_harness as harness
from absl.testing import absltest, parameterized
from jax.ad_checkpoint import checkpoint_name

import jax_cxl

_ROWS = 500_000
_IDS = np.array([7, _ROWS - 1])
_SIZE = 2 * harness.MIB
_CUT = 3 * harness.MIB  # the catalog and the first rows stay


class _Open:
    """What a process may have open in a store. Each part is opened when it is first used."""

    def __init__(self, where):
        self.store = jax_cxl.Store(where)

    def _rows(self):
        return np.ones((_ROWS, 4), np.float32)

    @functools.cached_property
    def table(self):
        return jax_cxl.Table.create(self.store, "table", self._rows())

    @functools.cached_property
    def trained(self):
        made = jax_cxl.Table.create(self.store, "trained", self._rows(), trained=True, step_rows=8)
        made.take(_IDS).block_until_ready()
        return made

    @functools.cached_property
    def take(self):
        made = jax.jit(self.table.take)
        made(_IDS).block_until_ready()
        return made

    @functools.cached_property
    def tree(self):
        self.store.publish("tree", {"w": np.ones(_SIZE, np.float32)})
        self.store.flush("tree")

    @functools.cached_property
    def view(self):
        _ = self.tree
        return self.store.view("tree")

    @functools.cached_property
    def rows(self):
        return self.table.view()

    @functools.cached_property
    def handle(self):
        made = jax_cxl.offload({"w": jnp.ones(_SIZE)}, self.store, "cold")
        self.store.flush("cold")
        return made

    @functools.cached_property
    def gradient(self):
        offloaded = jax_cxl.offload_residuals(
            lambda x: jnp.sin(checkpoint_name(x, "x")), self.store, names="x", calls=1
        )
        made = jax.jit(jax.grad(lambda x: jnp.sum(offloaded(x))))
        made(self.x).block_until_ready()
        return made

    @functools.cached_property
    def x(self):
        return jnp.ones(_SIZE)


# Each of these calls reads from the memory itself.
_ACCESSES = {
    "take": lambda of: of.take(_IDS).block_until_ready(),
    "eager take": lambda of: of.table.take(_IDS).block_until_ready(),
    "take, mode error": lambda of: of.table.take(_IDS, mode="error").block_until_ready(),
    "take of trained rows": lambda of: of.trained.take(_IDS).block_until_ready(),
    "Table.read": lambda of: of.table.read(_IDS),
    "Table.read of trained rows": lambda of: of.trained.read(_IDS),
    "Table.step": lambda of: of.trained.step,
    "Table.wait": lambda of: of.trained.wait(1, timeout=30),
    "Table.add": lambda of: of.trained.add(_IDS, np.ones((2, 4), np.float32)),
    "residuals": lambda of: of.gradient(of.x).block_until_ready(),
    "fetch": lambda of: jax_cxl.fetch(of.handle),
    "prefetch": lambda of: jax_cxl.prefetch(of.handle).result(),
    "read": lambda of: of.store.read("tree"),
    "read like": lambda of: of.store.read("tree", {"w": of.x}),
    "view": lambda of: of.store.view("tree"),
    "View.check": lambda of: of.view.check(),
    "Table.check": lambda of: of.table.check(),
}
# These ask what the newest state of the memory is.
_QUESTIONS = {
    "wait": lambda of: of.store.wait("tree", 0, timeout=30),
    "wait for a new name": lambda of: of.store.wait("other", timeout=30),
    "read a newer one": lambda of: of.store.read("tree", newer_than=0, timeout=30),
    "list": lambda of: of.store.list(),
    "Table.open": lambda of: jax_cxl.Table.open(of.store, "table"),
    "publish": lambda of: of.store.publish("tree", {"w": np.ones(3)}),
    "delete": lambda of: of.store.delete("tree"),
}
_SUMS = {
    "View.tree": lambda of: of.view.tree["w"].sum(),
    "Table.view": lambda of: of.table.view().sum(),
}


def _lose(how, path):
    if how == "cut short":
        os.truncate(path, _CUT)
    else:
        path.unlink()
        if how == "replaced":
            path.write_bytes(b"")


class LostMemoryTest(harness.StoreTest):
    def open(self, *calls):
        """Opens what these calls use."""
        of = _Open(self.where.replace(f"{64 * harness.MIB}", "256MiB"))
        _ = of.tree
        for name in {name for call in calls for name in call.__code__.co_names}:
            getattr(of, name, None)
        return of

    def refused(self):
        return self.assertRaisesRegex(
            jax_cxl.PoolError, f"{self.path} was (cut short|deleted or replaced)"
        )

    @parameterized.parameters(*_ACCESSES, *_QUESTIONS)
    def test_at_once(self, call):
        run = (_ACCESSES | _QUESTIONS)[call]
        of = self.open(run)
        _lose("cut short", self.path)
        for _ in range(2):
            with self.refused():
                run(of)

    @parameterized.product(
        how=["deleted", "replaced"],
        call=[*_QUESTIONS, "read", "read like", "view", "fetch", "View.check", "Table.check"],
    )
    def test_names_at_once(self, how, call):
        run = (_ACCESSES | _QUESTIONS)[call]
        of = self.open(run)
        _lose(how, self.path)
        with self.refused():
            run(of)

    @parameterized.parameters("cut short", "deleted", "replaced")
    def test_after_a_heartbeat(self, how):
        calls = _ACCESSES | _QUESTIONS | _SUMS
        of = self.open(*calls.values())
        _lose(how, self.path)
        # The heartbeat of this process finds it.
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                of.view.tree  # noqa: B018
            except jax_cxl.StoreError:
                break
        for name, call in calls.items():
            with self.subTest(name), self.refused():
                call(of)

    def test_arrays_over_a_path_that_parity_replaces(self):
        paths = [self.path.with_name(name) for name in "abc"]
        files = ",".join(map(str, paths))
        store = jax_cxl.Store(f"file:{files}?size=64MiB", parity=1)
        data = np.random.default_rng(0).integers(0, 256, harness.MIB, np.uint8)
        store.publish("tree", {"w": data})
        store.flush("tree")
        view = store.view("tree")
        (lost,) = (path for path in paths if data[:4096].tobytes() in path.read_bytes())
        os.truncate(lost, _CUT // 3)
        self.assertFalse(view.tree["w"].any())
        for call in (view.check, lambda: view.tree):
            with self.assertRaisesRegex(jax_cxl.StoreError, f"arrays in {lost}, which was lost"):
                call()
        np.testing.assert_array_equal(store.read("tree").tree["w"], data)
        devices = store._names.devices()
        (number,) = devices.lost
        self.assertEqual(devices.load_word(number, 0), 0, "a lost word counts as empty")

    def test_arrays_over_the_memory(self):
        of = self.open(*_SUMS.values())
        rows = of.rows
        tree = of.view.tree
        _lose("cut short", self.path)
        # NumPy cannot raise an error, so the arrays have zeros, and `check` says so.
        self.assertLess(tree["w"].sum(), _SIZE)
        self.assertLess(rows.sum(), 4 * _ROWS)
        for call in (of.view.check, of.table.check, of.table.view, lambda: of.view.tree):
            with self.refused():
                call()


if __name__ == "__main__":
    absltest.main()
