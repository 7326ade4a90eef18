"""Readers of a store, while another job acts at each single load of the reader."""

import contextlib
import gc
import io
import os
import re
from unittest import mock

import jax
import numpy as np
import pytest
import store_harness as harness
from absl.testing import absltest, parameterized
from loads import act_at
from other_job import KEEP, OtherJob, tree

import jax_cxl
from jax_cxl._commands.store import cli

MESH = jax.make_mesh((4, 2), ("a", "b"), devices=jax.devices()[:8])
ONE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
SPREAD = jax.NamedSharding(MESH, jax.P("a", "b"))

ACTS = {
    "half": OtherJob.half,
    "1": OtherJob.publish,
    "keep": lambda job: job.publish(KEEP),
    "keep_1": lambda job: job.publish(KEEP + 1),
    "3_keep": lambda job: job.publish(3 * KEEP),
    "again": OtherJob.create_again,
    "table": lambda job: job.again(),
}
ALL = tuple(act for act in ACTS if act != "table")
ABSENT = r"has no 'a'|has no version yet|was deleted|has no valid snapshot"


def like(sharding=None):
    if sharding is None:
        return tree(0)
    return {"x": jax.ShapeDtypeStruct((8, 40), np.int32, sharding=sharding), "n": 0}


class Case(harness.StoreTest):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, JAX_CXL_TIMEOUT="20"))

    def interleave(self, job, act, call, *, opened, errors=(), most=1000):
        """Calls a function again and again, while the other job acts at another load each time.

        Args:
          job: the other job.
          act: a key of `ACTS`.
          call: the function. It takes what `opened` returns, and checks what it reads. It may
            return a function to call afterwards.
          opened: opens the reader.
          errors: what the text of an error may be, as regular expressions.
          most: how many loads to try. Without it, all loads of a call that does not wait.
        """
        reader = opened()
        for number in range(most):
            job.begin()
            with (
                act_at(number, lambda: ACTS[act](job)) as loads,
                self.assertNoLogs("jax_cxl"),
                self.subTest(load=number),
            ):
                later = None
                try:
                    later = call(reader)
                except jax_cxl.StoreError as error:
                    if not any(re.search(text, str(error)) for text in errors):
                        raise
            if act == "half" and loads.acted:
                job.finish()
            if later is not None:
                later()
            if not loads.acted:
                return
            if act == "again":
                reader = opened()


class StoreTest(Case):
    def setUp(self):
        super().setUp()
        self.job = OtherJob(self.where)

    def run_all(self, act, call, **options):
        self.act = act
        errors = [ABSENT] if act == "again" else []
        self.interleave(self.job, act, call, opened=self.open, errors=errors, **options)

    def newest(self, found):
        version, of = found
        self.assertTrue(self.job.is_newest(version, of), (version, of))

    def version(self, wanted, call):
        """Checks a call that reads one version, which may be overwritten before it is read."""
        try:
            version, of = call()
        except jax_cxl.StoreError as error:
            self.assertRegex(str(error), f"has no version {wanted}, only|are gone: |{ABSENT}")
            if self.act != "again":
                self.assertNotIn(wanted, self.job.whole())
            return
        self.assertEqual(version, wanted)
        self.assertTrue(self.job.was_whole(version, of), (version, of))

    @parameterized.product(act=ALL, sharding=(None, ONE, SPREAD))
    @pytest.mark.sample(5)
    def test_read(self, act, sharding):
        self.run_all(act, lambda store: self.newest(store.read("a", like(sharding))))

    @parameterized.parameters(*ALL)
    def test_read_all_leaves(self, act):
        self.run_all(act, lambda store: self.newest(store.read("a")))

    @parameterized.product(act=ALL, with_like=(False, True))
    @pytest.mark.sample(7)
    def test_read_into(self, act, with_like):
        before = self.open()

        def read(store, **options):
            return store.read("a", like() if with_like else None, **options)

        def call(store):
            self.newest(read(store, into=self.before))

        begin = self.job.begin

        def begin_and_read():
            begin()
            self.before = read(before)

        self.job.begin = begin_and_read
        self.run_all(act, call)

    @parameterized.product(act=("half", "1", "keep", "keep_1", "3_keep"), than=(0, 1))
    @pytest.mark.sample(3)
    def test_read_newer(self, act, than):
        if act == "half" and not than:
            return  # There is no newer version.

        def call(store):
            newer_than = self.job.start - than
            version, of = store.read("a", like(), newer_than=newer_than, timeout=5)
            self.assertGreater(version, newer_than)
            self.newest((version, of))

        # Without a newer version, the call loads again and again.
        self.run_all(act, call, most=1000 if than else 60)

    @parameterized.product(act=ALL, which=("start", "first"))
    @pytest.mark.sample(5)
    def test_read_version(self, act, which):
        def call(store):
            wanted = getattr(self.job, which)
            self.version(wanted, lambda: store.read("a", like(), version=wanted))

        self.run_all(act, call)

    @parameterized.parameters(*ALL)
    def test_wait(self, act):
        self.run_all(act, lambda store: self.newest((store.wait("a", timeout=5), None)))

    def view(self, store, **options):
        """Checks a view; returns a function that checks it after the other job has gone on."""
        view = store.view("a", **options)
        self.newest((view.version, view.tree))
        values = {name: np.array(x) for name, x in view.tree.items()}

        def later():
            if self.act != "again":
                self.job.publish(2)
            view.check()
            for name, x in view.tree.items():
                np.testing.assert_array_equal(x, values[name])
            view.close()
            del x
            gc.collect()  # JAX keeps an array that it has made of a view until then.

        return later

    @parameterized.product(act=ALL, sharding=(None, ONE))
    @pytest.mark.sample(7)
    def test_view(self, act, sharding):
        like_ = None if sharding is None else like(sharding)
        self.run_all(act, lambda store: self.view(store, like=like_))

    @parameterized.parameters(*ALL)
    @pytest.mark.sample(5)
    def test_view_of_a_version(self, act):
        def call(store):
            wanted = self.job.start
            self.version(wanted, lambda: opened(store, wanted))

        def opened(store, wanted):
            with store.view("a", version=wanted) as view:
                return view.version, {**view.tree, "x": np.array(view.tree["x"])}

        self.run_all(act, call)

    @parameterized.parameters(*ALL)
    def test_list(self, act):
        with self.open() as other:
            other.publish("other", tree(7))

        def call(store):
            found = {of.name: of.versions for of in store.list()}
            self.assertEqual(found["other"], (0,))
            if act != "again" or "a" in found:
                self.newest((found["a"][0], None))
                for version in found["a"]:
                    self.assertTrue(self.job.was_whole(version, None), found)
                self.assertEqual(list(found["a"]), sorted(found["a"], reverse=True))

        self.run_all(act, call)

    @parameterized.product(act=ALL, command=("check", "list"))
    @pytest.mark.sample(7)
    def test_command(self, act, command):
        def call(_):
            printed, problems = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(problems):
                status = cli.main([command, self.where])
            text = printed.getvalue()
            self.assertEqual((status, problems.getvalue()), (0, ""), text)
            self.assertNotRegex(text, r"(?<!un)damaged(?! *$)|lost")
            pattern = r"a (\d+): undamaged" if command == "check" else r"version (\d+):"
            versions = [int(version) for version in re.findall(pattern, text)]
            if act != "again":
                self.newest((versions[0], None))
            for version in versions:
                self.assertTrue(self.job.was_whole(version, None), text)

        self.run_all(act, call)

    @parameterized.product(act=("half", "1", "keep", "keep_1", "3_keep"), ahead=(False, True))
    @pytest.mark.sample(3)
    def test_fetch(self, act, ahead):
        x = jax.device_put(tree(0)["x"], ONE)

        def call(store):
            # The other job has published what this one takes for its own.
            store._names._publishers["a"] = self.job._store._names.known("a")
            with mock.patch.object(jax_cxl.Store, "publish", lambda *_, **__: self.job.start):
                cold = jax_cxl.offload({"x": x}, store, "a")

            def fetch():
                found = jax_cxl.prefetch(cold).result() if ahead else jax_cxl.fetch(cold)
                return self.job.start, {**found, "n": int(found["x"][0, 0])}

            self.version(self.job.start, fetch)

        self.run_all(act, call)


class OtherTable:
    """A job that deletes a table and creates it again, or trains it."""

    def __init__(self, where, trained):
        self.store = jax_cxl.Store(where)
        self.trained, self.value = trained, 0
        self.create()

    def rows(self, value):
        return np.arange(120, dtype=np.int32).reshape(60, 2) + 1000 * value

    def create(self):
        self.value += 1
        made = jax_cxl.Table.create(self.store, "t", self.rows(self.value), trained=self.trained)
        made.close()

    def begin(self):
        self.start = self.value

    def again(self):
        try:
            self.store.delete("t")
        except jax_cxl.StoreError as error:
            assert "reads it" in str(error), error
        else:
            self.create()

    def was(self, rows):
        values = range(self.start, self.value + 1)
        return any(rows.tobytes() == self.rows(value).tobytes() for value in values)


class TablesTest(Case):
    @parameterized.parameters(False, True)
    def test_open(self, trained):
        job = OtherTable(self.where, trained)

        def call(store):
            with jax_cxl.Table.open(store, "t") as table:
                self.assertTrue(job.was(table.read()["rows"]))
                taken = table.take(np.arange(60))
                self.assertTrue(job.was(np.asarray(taken)))
                taken.delete()

        errors = ["has no 't'", "has no version yet"]
        self.interleave(job, "table", call, opened=self.open, errors=errors)


class SnapshotsTest(Case):
    def setUp(self):
        super().setUp()
        self.job = OtherJob(self.where, "snapshots")

    def run_all(self, act, call):
        errors = [ABSENT] if act == "again" else []
        opened = lambda: jax_cxl.Snapshots(self.where)  # noqa: E731
        self.interleave(self.job, act, call, opened=opened, errors=errors)

    @parameterized.parameters(*ALL)
    def test_latest(self, act):
        def call(snapshots):
            step = snapshots.latest()
            self.assertTrue(self.job.is_newest(step, None), step)

        self.run_all(act, call)

    @parameterized.product(act=ALL, sharding=(None, ONE, SPREAD))
    @pytest.mark.sample(7)
    def test_restore_latest(self, act, sharding):
        def call(snapshots):
            step, of = snapshots.restore_latest(like(sharding))
            self.assertTrue(self.job.is_newest(step, of), (step, of))

        self.run_all(act, call)

    @parameterized.product(act=ALL, which=("start", "first"), sharding=(None, SPREAD))
    @pytest.mark.sample(9)
    def test_restore(self, act, which, sharding):
        def call(snapshots):
            step = getattr(self.job, which)
            try:
                of = snapshots.restore(step, like(sharding))
            except jax_cxl.StoreError as error:
                self.assertRegex(str(error), f"no valid snapshot of step {step}|{ABSENT}")
                if act != "again":
                    self.assertNotIn(step, self.job.whole())
                return
            self.assertTrue(self.job.was_whole(step, of), (step, of))

        self.run_all(act, call)


if __name__ == "__main__":
    absltest.main()
