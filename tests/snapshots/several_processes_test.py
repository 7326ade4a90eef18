"""What processes agree on before they save or restore, with threads in their place."""

import os
import shutil
import threading
from unittest import mock

import numpy as np
import places
import shared_folder
import threads
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import errors
from jax_cxl._store import agreement
from jax_cxl._store.memory import section
from jax_cxl._store.reading import rebuilding, restoring
from jax_cxl._store.trees import flatten
from jax_cxl._store.writing.save_agreement import read_note, write_note

COUNT = 3


def tree(step, own):
    return {"a": np.arange(5) + 10 * own + step, "n": step}


class Case(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.processes = threads.Processes(COUNT)
        self.enterContext(self.processes.running())
        self.folder = self.enterContext(shared_folder.folder())

    def opened(self, own, folder="", **options):
        return jax_cxl.Snapshots(f"file:{self.folder}/{folder}x?size=48MiB", **options)

    def all_raise(self, function, *kinds):
        """Asserts that process i raises an error of the class and text kinds[i]."""
        for found, (kind, text) in zip(self.processes.run(function), kinds, strict=True):
            self.assertIs(type(found), kind, repr(found))
            self.assertRegex(str(found), text)


class SnapshotsTest(Case):
    def test_each_process_gets_its_own(self):
        def save(own):
            with self.opened(own) as snapshots:
                for step in range(5):
                    snapshots.save(step, tree(step, own))
                snapshots.wait()

        def restore(own):
            with self.opened(own) as snapshots:
                found = snapshots.restore_latest(tree(0, own)), snapshots.restore(3, tree(0, own))
                snapshots.save(9, tree(9, own))
                snapshots.wait()
                return *found, snapshots.latest()

        self.assertEqual(list(self.processes.run(save)), [None] * COUNT)
        for own, (latest, older, last) in enumerate(self.processes.run(restore)):
            self.assertEqual((latest[0], last), (4, 9))
            places.assert_same(self, tree(4, own), latest[1])
            places.assert_same(self, tree(3, own), older)

    def test_a_scalar_of_each_process(self):
        def run(own):
            saved = {"array": np.array(own, np.int16), "scalar": np.float32(own)}
            with self.opened(own) as snapshots:
                snapshots.save(1, saved)
                snapshots.wait()
                return snapshots.restore(1, saved)

        for own, found in enumerate(self.processes.run(run)):
            self.assertIsInstance(found["array"], np.ndarray)
            self.assertIsInstance(found["scalar"], np.float32)
            self.assertEqual((found["array"].dtype, *found.values()), (np.int16, own, own))

    def differ(self, here, there, text, first=(), who=2):
        """Asserts that all processes raise if process `who` calls `there` and others call `here`.

        Also asserts that the newest snapshot is still the earlier one.
        """

        def run(own):
            with self.opened(own) as snapshots:
                for step in first:
                    snapshots.save(step, tree(step, own))
                (there if own == who else here)(snapshots, own)

        self.all_raise(run, *[(errors.MismatchError, text)] * COUNT)
        newest = self.processes.run(lambda own: self.opened(own).latest())
        self.assertEqual(newest, [max(first, default=None)] * COUNT)

    @parameterized.parameters(((), 2), ((1, 2, 3), 1))
    def test_other_steps(self, first, who):
        self.differ(
            lambda snapshots, own: snapshots.save(4, tree(4, own)),
            lambda snapshots, own: snapshots.save(5, tree(4, own)),
            f"save different steps: process 0 has step 4, and process {who} has step 5$",
            first,
            who,
        )

    @parameterized.product(
        first=((), (1, 2, 3)),
        differs=(
            ({"n": 7}, "process 0 has ['n'], the int 4, and process 2 has ['n'], the int 7"),
            ({"a": np.zeros(5, np.int8)}, "['a'], int64[5] on .* process 2 has ['a'], int8[5] on"),
            ({"b": 1}, "process 0 has ['n'], the int 4, and process 2 has ['b'], the int 1"),
        ),
    )
    def test_other_trees(self, first, differs):
        change, text = differs
        self.differ(
            lambda snapshots, own: snapshots.save(4, tree(4, own)),
            lambda snapshots, own: snapshots.save(4, tree(4, own) | change),
            text.replace("[", r"\[").replace("]", r"\]"),
            first,
        )

    def test_other_operations(self):
        self.differ(
            lambda snapshots, own: snapshots.restore_latest(tree(0, own)),
            lambda snapshots, own: snapshots.latest(),
            "call different operations: process 0 has restore_latest, and process 2 has latest$",
            first=(1,),
        )

    def test_other_memory(self):
        def run(own):
            snapshots = self.opened(own, keep=3 if own == 2 else 2, folder=str(own == 2))
            snapshots._look(make=True)
            snapshots.latest()

        text = r"have different memory: process 0 has Geometry\(keep=2.* 2 has Geometry\(keep=3"
        self.all_raise(run, *[(errors.MismatchError, text)] * COUNT)

    @parameterized.parameters(((),), ((1, 2, 3),))
    def test_one_cannot_save(self, first):
        def run(own):
            with self.opened(own) as snapshots:
                for step in first:
                    snapshots.save(step, tree(step, own))
                with self.assertRaises((TypeError, errors.StoreError)) as raised:
                    snapshots.save(4, {"a": object() if own == 1 else 3})
                # The processes can continue.
                snapshots.save(4, tree(4, own))
                snapshots.wait()
            raise raised.exception

        text = "could not save: TypeError: a store cannot hold"
        of_others = errors.StoreError, f"process 1 {text}"
        self.all_raise(run, of_others, (TypeError, r"cannot hold \['a'\]"), of_others)

    def one_cannot_restore(self, error):
        """Restores, while process 1 raises an error when it reads step 2. One process saved."""
        with self.opened(0) as snapshots:
            for step in (1, 2):
                snapshots.save(step, tree(step, 0))
            snapshots.wait()
        real = rebuilding.rebuild

        def rebuild(names, likes, source):
            if self.processes.own == 1 and source.reader.records[0].version == 2:
                raise error
            return real(names, likes, source)

        with mock.patch.object(rebuilding, "rebuild", rebuild):
            return self.processes.run(
                lambda own: self.opened(own).restore_latest(tree(0, own)),
            )

    @parameterized.parameters(
        (restoring.MisfitError, restoring.MisfitError), (RuntimeError, errors.CxlError)
    )
    def test_one_cannot_restore(self, kind, of_others):
        found = self.one_cannot_restore(kind("no"))
        text = f"process 1 could not read the snapshot of step 2: {kind.__name__}: no$"
        for own, error in enumerate(found):
            self.assertIs(type(error), kind if own == 1 else of_others)
            self.assertRegex(str(error), "^no$" if own == 1 else text)

    def test_damage_of_one_process_is_that_of_all(self):
        with self.assertLogs("jax_cxl", "WARNING") as logs:
            found = self.one_cannot_restore(errors.StoreError("damaged"))
        for step, restored in found:
            self.assertEqual(step, 1)
            places.assert_same(self, tree(1, 0), restored)
        self.assertLen(logs.output, COUNT)

    def test_one_has_no_memory(self):
        def run(own):
            self.opened(own, keep="no" if own == 1 else 2).restore_latest(tree(0, own))

        of_others = errors.StoreError, "process 1 cannot restore_latest: TypeError: keep="
        self.all_raise(run, of_others, (TypeError, "keep="), of_others)

    def test_one_finds_no_store(self):
        def run(own):
            snapshots = self.opened(own, folder=str(own == 1))
            if own == 1:
                return snapshots.latest()
            snapshots._look(make=True)
            return snapshots.latest()

        text = "process 1 cannot latest: AbsentError: there is no store at"
        self.all_raise(run, *[(errors.StoreError, text)] * COUNT)

    def test_a_deletion_is_the_same_error_on_all(self):
        def run(own):
            problem = section.DeletedError("it was deleted") if own == 1 else None
            agreement.raise_first(range(COUNT), problem, "could not save")

        self.all_raise(run, *[(section.DeletedError, "it was deleted")] * COUNT)

    def first_raises(self, found, kind, text):
        """Asserts that a process raises an error, and that the others raise the same or report
        it."""
        for error in found:
            self.assertIn(type(error), (kind, errors.StoreError), repr(error))
            self.assertRegex(str(error), text)
        self.assertIn(kind, [type(error) for error in found])

    def test_one_has_another_file(self):
        def save(own):
            with self.opened(own, folder=str(own == 2)) as snapshots:
                snapshots.save(1, tree(1, own))

        text = "is not the same memory on processes 0 and 2: name"
        self.all_raise(save, *[(errors.StoreError, text)] * COUNT)

    def test_one_has_a_copy_of_the_file(self):
        def run(own):
            with self.opened(own, folder=str(own == 2)) as snapshots:
                snapshots.save(1, tree(1, own))

        def save(own):
            with self.opened(own, folder="False") as snapshots:
                snapshots.save(0, tree(0, own))
                snapshots.wait()

        self.processes.run(save)
        shutil.copy(f"{self.folder}/Falsex", f"{self.folder}/Truex")
        text = "is not the same memory on processes 0 and 2: name"
        self.all_raise(run, *[(errors.StoreError, text)] * COUNT)

    @parameterized.parameters(
        (False, errors.CollectiveTimeoutError, r"\[2\] did not arrive within 0.3 s"),
        (True, errors.PeerLostError, "rank 2 is gone"),
    )
    @mock.patch.dict(os.environ, {"JAX_CXL_TIMEOUT": "0.3"})
    def test_one_does_not_come(self, lost, kind, text):
        def run(own):
            with self.opened(own) as snapshots:
                snapshots.save(1, tree(1, own))
                snapshots.wait()
                if own != 2:
                    snapshots.save(2, tree(2, own))
                elif lost:
                    self.processes.lost.add(2)

        *others, last = self.processes.run(run)
        self.assertIsNone(last)
        self.first_raises(others, kind, "a save of 'snapshots': " + text)

    @mock.patch.dict(os.environ, {"JAX_CXL_TIMEOUT": "0.3"})
    def test_the_process_that_claimed_the_memory_has_closed_it(self):
        closed = threading.Event()

        def run(own):
            with self.opened(own) as snapshots:
                snapshots.save(1, tree(1, own))
                snapshots.wait()
                if own != 0:
                    closed.wait()
                    snapshots.save(2, tree(2, own))
            closed.set()

        first, *others = self.processes.run(run)
        self.assertIsNone(first)
        text = r"a save of 'snapshots': \[0\] did not arrive within 0.3 s"
        self.first_raises(others, errors.CollectiveTimeoutError, text)


class StreamTest(Case):
    def test_one_gives_up(self):
        def run(own):
            made = tree(0, own) | {"b": np.arange(7)}
            flattener = flatten.Flattener(whole=True)

            def describe(writers):
                return flattener.flatten(made, writers)

            with jax_cxl.Store(f"file:{self.folder}/store?size=48MiB") as store:
                publisher = store._names.publisher("a", describe)
                stream = publisher.stream(None, describe)
                stream.write({0: made["a"]})
                if own == 1:
                    stream.abort(ValueError("broken"))
                    store.flush("a")
                else:
                    stream.write({1: made["b"], 2: None})
                    stream.close()
                    with self.assertRaisesRegex(errors.StoreError, "process 1 .*: broken"):
                        store.flush("a")
                store.publish("a", made)
                store.flush("a")
                return store.list()[0].versions

        self.assertEqual(list(self.processes.run(run)), [(1,)] * COUNT)


class NoteTest(Case):
    def test_it_is_read_as_it_was_written(self):
        (section,) = self.processes.run(lambda own: self.opened(own)._look(make=True).section)[:1]
        for text in ("a problem", "a\n\u202e" * 9999):
            write_note(section, 5, 7, text)
            found = read_note(section, 5, 7)
            self.assertTrue(found.isprintable())
            self.assertEqual(found[:3], "a  " if "\n" in text else text[:3])
            self.assertEqual((read_note(section, 5, 8), read_note(section, 4, 7)), ("", ""))
        for device in section.geometry.mirrors:
            section.devices.write(device, section.geometry.note(5) + 20, b"x")
        self.assertEqual(read_note(section, 5, 7), "")


if __name__ == "__main__":
    absltest.main()
