"""The command `store`: what it prints, what it changes, and what it refuses."""

import contextlib
import io
import os
import pathlib
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import places
import shared_folder
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import __main__
from jax_cxl._store.trees import names


class Adam(NamedTuple):
    count: jax.Array
    mu: dict


class Empty(NamedTuple):
    """A node of an optimizer's state that has no leaves."""


def _tree(step: int):
    rng = np.random.default_rng(step)
    return {
        "params": {"w": jnp.asarray(rng.standard_normal((300, 1000), np.float32))},
        "opt": (Adam(jnp.array(step, jnp.int32), {"w": jnp.ones(3, jnp.bfloat16)}), Empty()),
        "small": [jnp.asarray(rng.integers(-8, 8, 5).astype(ml_dtypes.int4)), jnp.array([True])],
        "step": step,
        "rate": 0.5,
        "nothing": None,
    }


def _run(*arguments) -> tuple[int, str, str]:
    """Runs the command in this process; returns its status, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = __main__.main(["store", *map(str, arguments)])
        except SystemExit as exit:
            status = exit.code
    return status, out.getvalue(), err.getvalue()


def _save(place, *steps, **options):
    with place.open(**options) as snapshots:
        snapshots.latest()
        for step in steps:
            snapshots.save(step, _tree(step))
        snapshots.wait()


class CommandTest(parameterized.TestCase):
    def done(self, *arguments) -> str:
        status, out, err = _run(*arguments)
        self.assertEqual((status, err), (0, ""), out)
        return out

    def refused(self, why: str, *arguments, status: int = 1) -> str:
        found, out, err = _run(*arguments)
        self.assertEqual(found, status, out + err)
        self.assertRegex(err, why)
        return out

    def test_list(self):
        with places.place(_tree(0), keep=3, paths=2) as place:
            _save(place, 5, 6, keep=3)
            without_size = place.where.partition("?")[0]
            contents = place.contents()
            for where in (place.where, without_size):
                lines = self.done("list", where).splitlines()
                self.assertRegex(lines[0], f"parity=0, 2 x {place.size} bytes, 0 free$")
                self.assertRegex(
                    lines[1],
                    r"^snapshots: \d+ bytes until it is deleted: room for 3 versions .keep=3. and",
                )
                self.assertRegex(
                    lines[2], r"^  version 6: 20.*, 1 process, 7 leaves, 1200016 bytes"
                )
                self.assertRegex(lines[3], "^  version 5: ")
                self.assertEqual(lines[4:], ["  area 0: empty", "  area 3: empty"])
            self.assertEqual(place.contents(), contents, "list changes nothing")

    def test_list_tells_what_is_torn(self):
        with places.place(_tree(0)) as place:
            _save(place, 5, 6)
            (_, device, offset, _) = next(
                part for part in places.used(place, 5) if part[0] == "record"
            )
            place.flip(device, offset)
            self.assertIn("area 1: being written or torn", self.done("list", place.where))
            directory = next(part for part in places.used(place, 6) if part[0] == "directory")
            place.flip(directory[1], directory[2])
            self.assertRegex(
                self.done("list", place.where),
                "area 2 of version 6: damaged .the directory of process 0 is damaged",
            )

    @parameterized.parameters("list", "check", "delete", "repair", "export")
    def test_nothing_is_created_where_there_is_nothing(self, command):
        more = ("/x",) if command == "export" else ()
        with shared_folder.folder() as folder:
            where = f"file:{folder}/a?size=1MiB"
            absent = re.escape(f"there is no store at '{where}': {folder}/a")
            self.refused(f"{absent} does not exist. Check the URI", command, where, *more)
            self.assertEmpty(os.listdir(folder))
            path = pathlib.Path(folder, "a")
            path.touch(mode=0o600)
            self.refused(f"{absent} is empty", command, where, *more)
            self.assertEqual(path.stat().st_size, 0)
        absent = "there is no store at 'shm:of_no_test': /dev/shm/jax_cxl_store.of_no_test"
        self.refused(absent, command, "shm:of_no_test", *more)
        self.refused("it needs a name", command, "shm:", *more)

    def test_shm_needs_no_size_once_it_is_there(self):
        name = f"command_test.{os.getpid()}"
        path = pathlib.Path(f"/dev/shm/jax_cxl_store.{name}")
        try:
            self.done("format", f"shm:{name}?size=8MiB")
            self.assertEqual(path.stat().st_size, 8 << 20)
            self.assertIn("parity=0", self.done("list", f"shm:{name}"))
            snapshots = jax_cxl.Snapshots(f"shm:{name}", keep=3)
            snapshots.save(4, {"a": 1})
            snapshots.wait()
            self.refused("in use by a job", "delete", f"shm:{name}")
            del snapshots
            out = self.done("delete", f"shm:{name}")
            self.assertEqual(out, f"deleted snapshots\nremoved {path}\n")
            self.assertFalse(path.exists())
        finally:
            path.unlink(missing_ok=True)

    @parameterized.product(parity=(0, 1))
    def test_check(self, parity):
        with places.place(_tree(0), paths=3, parity=parity) as place:
            _save(place, 1, 2, parity=parity)
            self.assertEqual(
                self.done("check", place.where),
                "snapshots 2: undamaged\nsnapshots 1: undamaged\nnothing is damaged\n",
            )
            kinds = {}
            for kind, device, offset, size in places.used(place, 1):
                kinds.setdefault(kind, (device, offset, size))
            if not parity:
                del kinds["record"]  # Without its record it is not a snapshot.
            for kind, (device, offset, size) in kinds.items():
                place.flip(device, offset + size - 1)
                status, out, _ = _run("check", place.where)
                self.assertEqual(status, 1, kind)
                self.assertIn("snapshots 2: undamaged", out)
                self.assertIn(f"snapshots 1: {'un' * (kind == 'superblock')}damaged", out)
                where = f"(device {device}, offset {offset:#x})"
                if kind == "superblock":
                    self.assertIn(f"superblock {where} is damaged: it has a copy", out)
                elif parity:
                    has = "other devices have it" if kind == "record" else "parity has it"
                    self.assertRegex(out, f"snapshots 1: {kind}.*{has}")
                    self.assertIn(where, out)
                elif kind == "data":
                    self.assertIn(f"snapshots 1: data of process 0 {where} is lost", out)
                else:
                    self.assertRegex(out, f"snapshots 1: the {kind}.* of process 0 is damaged")
                place.flip(device, offset + size - 1)
            self.done("check", place.where)

    def test_repair(self):
        with places.place(_tree(0), paths=3, parity=1) as place:
            _save(place, 1, 2, parity=1)
            place.paths[1].unlink()
            for command in ("check", "list"):
                _, out, _ = _run(command, place.where)
                self.assertIn("device 1 is lost", out)
                self.assertFalse(place.paths[1].exists())
            place.paths[1].touch(mode=0o600)
            _run("list", place.where)
            self.assertEqual(place.paths[1].stat().st_size, 0)
            out = self.done("repair", place.where)
            self.assertRegex(out, r"device 1 was lost\n\d+ blocks, records and superblocks")
            self.assertIn("nothing is damaged", self.done("check", place.where))
            place.zero(2)
            status, out, _ = _run("check", place.where)
            self.assertEqual(status, 1)
            self.assertIn("device 2 is lost", out)
            self.assertIn("device 2 is lost", self.done("list", place.where))
            self.done("repair", place.where)
            place.zero(0)
            found = place.open(parity=1).restore_latest(_tree(0))
            places.assert_same(self, (2, _tree(2)), found)
            data = [part for part in places.used(place, 2) if part[0] == "data"]
            place.flip(data[0][1] or data[1][1], data[0][2])
            self.refused(
                "version 2 of 'snapshots' is damaged, more than parity can mend",
                "repair",
                place.where,
            )

    def test_repair_needs_parity(self):
        with places.place(_tree(0)) as place:
            _save(place, 1)
            self.refused("has no parity", "repair", place.where)
            place.flip(0, 100)
            self.done("repair", place.where)
            self.assertIn("nothing is damaged", self.done("check", place.where))

    def test_delete(self):
        with places.place(_tree(0), keep=3, paths=2) as place:
            _save(place, 1, 2, 3, keep=3)
            self.refused(
                r"version 7, only the versions \[3, 2, 1\]", "delete", place.where, "--version=7"
            )
            self.assertEqual(
                self.done("delete", place.where, "--version", 2), "deleted snapshots 2\n"
            )
            snapshots = place.open(keep=3)
            with self.assertRaises(jax_cxl.StoreError):
                snapshots.restore(2, _tree(0))
            places.assert_same(self, _tree(1), snapshots.restore(1, _tree(0)))
            places.assert_same(self, _tree(3), snapshots.restore(3, _tree(0)))
            del snapshots
            self.assertEqual(self.done("delete", place.where), "deleted snapshots\n")
            self.assertIsNone(place.open(keep=3).latest())

    def test_format(self):
        with places.place(_tree(0), paths=2) as place:
            self.assertRegex(self.done("format", place.where), "parity=0, 2 x")
            # A store that holds nothing may be formatted again.
            self.done("format", place.where, "--parity=1")
            self.done("format", place.where)
            _save(place, 1)
            before = place.contents()
            refusal = r"holds the names \['snapshots'\]. --yes clears it"
            self.refused(refusal, "format", place.where)
            self.assertEqual(place.contents(), before)
            place.paths[1].write_bytes(b"A novel.\n" + bytes(place.size))
            self.refused("may hold something: .*device1 holds other data", "format", place.where)
            self.assertTrue(place.paths[1].read_bytes().startswith(b"A novel."))
            self.done("format", place.where, "--yes", "--parity=1")
            snapshots = place.open(parity=1)
            snapshots._look(make=True)
            self.refused("in use by a job", "format", place.where, "--yes")
            del snapshots

    def test_export_and_import(self):
        tree = {
            "layers": [{"w": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)}, {"w": jnp.zeros(3)}],
            "key": jax.random.key(7),
        }
        with places.place(tree, keep=3) as place, shared_folder.folder() as folder:
            with place.open(keep=3) as snapshots:
                snapshots.save(2, tree)
                snapshots.wait()
            file = pathlib.Path(folder, "a.safetensors")
            out = self.done("export", place.where, "--version=2", file)
            written = f"wrote snapshots 2 to {file}\n"
            self.assertEqual(out, f"{written}['key']: typed PRNG keys, written as key data\n")
            self.refused("already exists", "export", place.where, file)
            self.refused("no valid version 4", "export", place.where, "--version=4", f"{folder}/b")
            where = f"file:{folder}/other?size=64MiB"
            out = self.done("import", file, where, "--name=policy", "--version=5", "--keep=3")
            self.assertEqual(out, f"published {file} as policy 5\n")
            # Without --keep, the store keeps its own setting.
            self.assertIn("policy 6", self.done("import", file, where, "--name=policy"))
            again = ("import", file, where, "--name=policy", "--keep=2")
            self.refused("made with keep=3", *again)
            found = jax_cxl.Store(where).read("policy").tree
        self.assertEqual({*found}, {"layers.0.w", "layers.1.w", "key"})
        for number, layer in enumerate(tree["layers"]):
            w = found[f"layers.{number}.w"]
            self.assertEqual(w.dtype, layer["w"].dtype)
            np.testing.assert_array_equal(w, layer["w"])
        np.testing.assert_array_equal(found["key"], jax.random.key_data(tree["key"]))

    def test_what_safetensors_cannot_hold(self):
        for refused, why in (
            ({"a": "text"}, "cannot hold .'a'., only arrays"),
            (jnp.zeros(3), "only arrays, each with its own name"),
            ({"a": jnp.zeros(3, jnp.int4)}, "safetensors cannot write"),
        ):
            with places.place(refused) as place, shared_folder.folder() as folder:
                with place.open() as snapshots:
                    snapshots.save(0, refused)
                self.refused(why, "export", place.where, f"{folder}/a.safetensors")
                self.assertEmpty(os.listdir(folder))
                self.refused("cannot read", "import", folder, place.where, "--name=a")

    def test_wrong_arguments(self):
        self.refused("usage", status=2)
        self.refused("invalid choice: 'lst'", "lst", "shm:a", status=2)
        self.refused("PATH", "export", "shm:a", status=2)
        self.refused("at least 2, not 1", "import", "a", "shm:a", "--name=a", "--keep=1", status=2)
        self.refused("at least 0, not -1", "delete", "shm:a", "--version=-1", status=2)
        self.refused("'tcp'", "list", "tcp:a")
        for command in ("", "list", "check", "export", "import", "delete", "format", "repair"):
            status, out, _ = _run(*filter(None, [command]), "--help")
            self.assertEqual(status, 0)
            self.assertIn(f"usage: python -m jax_cxl store {command}", out)


class NamesTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"a": [0, {"b'": 1}], 'x"]': {"]['": 2, "[": 3}},),
        ({"a b": {".c": 4, "": 5}},),
    )
    def test_names_of_dicts_and_lists_are_read_again(self, tree):
        for path, _ in jax.tree_util.tree_leaves_with_path(tree):
            name = jax.tree_util.keystr(path)
            keys = tuple(str(getattr(key, "key", getattr(key, "idx", None))) for key in path)
            self.assertEqual(names.simple(name), keys, name)

    @parameterized.parameters(
        ("", ()),
        (".mu['w']", ("mu", "w")),
        ("[3].count[<flat index 2>]", ("3", "count", "2")),
        ("[(1, 'x')]['y']", ("(1, 'x')", "y")),
        ("[<Color.RED: 1>].a", ("<Color.RED: 1>", "a")),
        ("[True][-1]", ("True", "-1")),
    )
    def test_other_names(self, name, keys):
        self.assertEqual(names.simple(name), keys)


if __name__ == "__main__":
    absltest.main()
