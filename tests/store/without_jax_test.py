"""Programs that do not have JAX."""

import subprocess
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
import store_harness as harness
from absl.testing import absltest

_WITHOUT = """
import sys

sys.modules.update({name: None for name in BLOCKED})
import collections
import numpy as np
import jax_cxl

WHERE = sys.argv[1]
Pair = collections.namedtuple("Pair", "mu nu")


def tree(version):
    x = np.arange(600_000.0) + version
    of = collections.OrderedDict([("z", x), ("a", [Pair(np.int32(version), None), (), 2.5])])
    return {"one": of, "two": x[None, :9], "step": version}

"""


class WithoutJaxTest(harness.StoreTest):
    def _run(self, program: str, blocked: tuple[str, ...] = ("jax", "jaxlib", "ml_dtypes")) -> str:
        text = _WITHOUT.replace("BLOCKED", repr(blocked)) + textwrap.dedent(program)
        command = [sys.executable, "-c", text, self.where]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stdout

    def test_what_jax_has_published(self):
        with self.open() as store:
            self.publish(store, "a", 7)
            read = """
            store = jax_cxl.Store(WHERE)
            assert store.wait("a") == 7
            assert [each.name for each in store.list()] == ["a"]
            version, found = store.read("a")
            with store.view("a") as view:
                for path, x in found.items():
                    print(path, np.asarray(x).dtype, np.asarray(x).tobytes().hex()[:4000])
                    assert np.asarray(view.tree[path]).tobytes() == np.asarray(x).tobytes()
            like = {"w": np.zeros((700, 1000), np.float32), "host": found["host"], "none": None}
            version, some = store.read("a", like)
            assert some["none"] is None and some["w"].tobytes() == found["w"].tobytes()
            """
            _, expected = store.read("a")
            lines = [
                f"{path} {np.asarray(x).dtype} {np.asarray(x).tobytes().hex()[:4000]}"
                for path, x in expected.items()
            ]
            text = self._run(read, blocked=("jax", "jaxlib"))
            self.assertEqual(text.splitlines(), lines)

    def test_a_dtype_that_numpy_lacks(self):
        with self.open() as store:
            store.publish("a", {"b": jnp.ones(3, jnp.bfloat16)})
            store.flush("a")
            self._run("""
            try:
                jax_cxl.Store(WHERE).read("a")
            except jax_cxl.StoreError as error:
                assert "pip install ml_dtypes" in str(error), error
            else:
                raise AssertionError("it was read")
            """)

    def test_what_it_publishes(self):
        self._run("""
        store = jax_cxl.Store(WHERE)
        for version in range(3):
            assert store.publish("a", tree(version)) == version
            store.flush("a")
        version, found = store.read("a", tree(0))
        assert (version, found["step"]) == (2, 2)
        assert type(found["one"]) is collections.OrderedDict and list(found["one"]) == ["z", "a"]
        pair, empty, number = found["one"]["a"]
        assert type(pair) is Pair and (pair.mu, pair.nu, empty, number) == (2, None, (), 2.5)
        last = store.read("a")
        store.publish("a", tree(3))
        store.flush("a")
        last = store.read("a", into=last)
        np.testing.assert_array_equal(last.tree["one/z"], tree(3)["one"]["z"])
        store.publish("b", tree(0))
        store.close()
        store.delete("b")
        try:
            store.publish("c", {"x": object()})
        except TypeError as error:
            assert "of type object" in str(error), error
        else:
            raise AssertionError("it was published")
        """)
        with self.open() as store:
            version, found = store.read("a")
            x = np.arange(600_000.0) + 3
            np.testing.assert_array_equal(found.pop("one/z"), x)
            np.testing.assert_array_equal(found.pop("two"), x[None, :9])
            self.assertEqual(found.pop("one/a/0/mu"), 3)
            self.assertEqual((version, found), (3, {"one/a/2": 2.5, "step": 3}))

    def test_the_same_names_as_with_jax(self):
        names = self._run("""
        from jax_cxl._store.trees import pytrees
        print(pytrees.flatten_with_names(tree(1))[0])
        x = collections.defaultdict(list, {"b": 1, "a": [2, {}]})
        names, leaves, structure = pytrees.flatten_with_names(x)
        print(names, leaves, structure.unflatten(leaves) == x)
        """)
        self.assertEqual(
            names.splitlines(),
            [
                """["['one']['z']", "['one']['a'][0].mu", "['one']['a'][2]","""
                """ "['step']", "['two']"]""",
                """["['a'][0]", "['b']"] [2, 1] True""",
            ],
        )

    def test_the_command(self):
        with self.open() as store:
            self.publish(store, "a", 7)
            store.publish("b", {"x": np.arange(9)})
        found = self._run("""
        import tempfile
        from jax_cxl import __main__
        with tempfile.TemporaryDirectory() as folder:
            file = folder + "/b.safetensors"
            for command in (
                ["export", WHERE, file, "--name=b"],
                ["import", file, WHERE, "--name=c"],
                ["list", WHERE],
            ):
                assert __main__.main(["store", *command]) == 0
        print(jax_cxl.Store(WHERE).read("c").tree)
        """)
        self.assertRegex(found, r"\ba: ")
        self.assertIn(str({"x": np.arange(9)}), found)

    def test_what_the_import_adds(self):
        # Each of these takes a large part of the time of an import.
        added = self._run("""
        import subprocess
        text = "import sys, numpy; before = {*sys.modules}; import jax_cxl; jax_cxl.Store; "
        text += "print(*{*sys.modules} - before)"
        print(subprocess.check_output([sys.executable, "-c", text], text=True))
        """)
        slow = ["concurrent.futures", "difflib", "importlib.metadata", "logging", "pathlib"]
        slow += ["secrets", "socket", "tempfile", "urllib.parse"]
        slow += ["jax_cxl._store.views", "jax_cxl._store.writing.publisher"]
        self.assertContainsSubset(["jax_cxl._store.following"], added.split())
        self.assertEqual([name for name in slow if name in added.split()], [])

    def test_a_program_that_has_jax_but_does_not_use_it(self):
        imported = self._run(
            """
            store = jax_cxl.Store(WHERE)
            store.publish("a", tree(1))
            store.flush("a")
            store.read("a"), store.view("a"), store.wait("a"), store.list()
            print([name for name in sys.modules if name in ("jax", "jaxlib", "ml_dtypes", "torch")])
            """,
            blocked=(),
        )
        self.assertEqual(imported, "[]\n")


if __name__ == "__main__":
    absltest.main()
