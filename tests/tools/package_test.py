"""The package as users install it: its version, its commands, its types, and what a wheel holds.

`JAX_CXL_WHEEL=dist/jax_cxl-....whl` checks the contents of a wheel. CONTRIBUTING.md has the
commands that build it.
"""

import importlib
import importlib.metadata
import inspect
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import typing
import zipfile

import pytest
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import __main__ as command_line

_PACKAGE = pathlib.Path(jax_cxl.__file__).parent
_ROOT = pathlib.Path(__file__).resolve().parents[2]

_USER = """
from typing import assert_type

import jax
import jax_cxl
from jax_cxl import errors, lax

jax_cxl.initialize("shm:?size=64MiB")
assert_type(jax_cxl.__version__, str)
assert_type(jax_cxl.stats().operations["psum"].seconds_waited, float)
try:
    x: jax.Array = jax_cxl.psum(jax.numpy.ones(4), "i")
    y: jax.Array = lax.all_gather(x, "i", tiled=True)
    program = jax_cxl.explain(lambda v: v, x)
    assert_type([each.through for each in program.collectives], list[str])
except jax_cxl.PeerLostError as error:
    assert_type(error.rank, int | None)
except errors.PoolError:
    devices: list[jax.Device] = list(jax_cxl.regroup())
with jax_cxl.replace_collectives(strict=True):
    pass
jax_cxl.shutdown()
"""


def _run(*arguments: str, **options: typing.Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=200, **options
    )


class ImportTest(absltest.TestCase):
    def test_pallas_is_not_imported(self):
        program = (
            "import sys, jax_cxl;"
            "jax_cxl.psum, jax_cxl.Snapshots, jax_cxl.Store, jax_cxl.Table, jax_cxl.pooled;"
            "print([name for name in sys.modules if 'pallas' in name])"
        )
        self.assertEqual(_run("-c", program).stdout, "[]\n")


class CommandTest(parameterized.TestCase):
    def test_version(self):
        self.assertEqual(jax_cxl.__version__, importlib.metadata.version("jax_cxl"))
        ended = _run("-m", "jax_cxl", "--version")
        self.assertEqual(ended.stdout, f"jax_cxl {jax_cxl.__version__}\n")

    def test_the_console_script_is_the_module(self):
        (script,) = (
            entry
            for entry in importlib.metadata.entry_points(group="console_scripts")
            if entry.name == "jax_cxl"
        )
        self.assertEqual(script.value, "jax_cxl.__main__:main")

    def test_help_has_a_line_for_each_command(self):
        lines = _run("-m", "jax_cxl", "--help").stdout.splitlines()
        for name in command_line.COMMANDS:
            self.assertLen([line for line in lines if line.split()[:1] == [name]], 1)

    @parameterized.parameters(*command_line.COMMANDS)
    @pytest.mark.sample(3)
    def test_each_command_has_help(self, name):
        ended = _run("-m", "jax_cxl", name, "--help")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("usage:", ended.stdout)

    def test_an_unknown_command(self):
        ended = _run("-m", "jax_cxl", "lunch")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("there is no command 'lunch'", ended.stderr)
        self.assertIn("launch", ended.stderr)

    def test_launch(self):
        program = pathlib.Path(__file__).parents[1] / "jobs/launch/programs/slow_start.py"
        ended = _run("-m", "jax_cxl", "launch", "-n", "0", str(program))
        self.assertIn("must be at least 1, not 0", ended.stderr)


class TypesTest(absltest.TestCase):
    def test_public_functions_are_annotated(self):
        for name in jax_cxl.__all__:
            value = getattr(jax_cxl, name)
            functions = (
                [
                    member
                    for key, member in inspect.getmembers(value, inspect.isfunction)
                    if key == "__init__" or not key.startswith("_")
                ]
                if inspect.isclass(value)
                else [value]
            )
            for function in filter(inspect.isfunction, functions):
                signature = inspect.signature(function)
                missing = [
                    parameter.name
                    for parameter in signature.parameters.values()
                    if parameter.annotation is parameter.empty and parameter.name != "self"
                ]
                self.assertEmpty(missing, f"{name}: {function}")
                self.assertIsNot(signature.return_annotation, signature.empty, function)

    def check(self, program: str) -> str:
        """Returns what mypy says about a user's program."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "user.py")
            path.write_text(program)
            return _run(
                *("-m", "mypy", "--strict", "--follow-imports=silent"),
                *(f"--cache-dir={folder}/cache", "--config-file=", str(path)),
                cwd=folder,
                env=os.environ | {"MYPYPATH": str(_PACKAGE.parent)},
            ).stdout

    @pytest.mark.long
    def test_a_program_that_is_right_and_one_that_is_not(self):
        said = self.check(_USER + "jax_cxl.initialize(3)\nn: str = jax_cxl.stats().calls\n")
        # Both mistakes, and nothing else.
        self.assertIn('Argument 1 to "initialize" has incompatible type "int"', said)
        self.assertIn("Incompatible types in assignment", said)
        self.assertIn("Found 2 errors in 1 file", said)

    def test_type_checkers_read_the_annotations(self):
        self.assertTrue((_PACKAGE / "py.typed").is_file())


class CheckoutTest(absltest.TestCase):
    """Sources in the current folder hide an installed package."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.checkout = self.folder / "checkout"
        (self.checkout / "jax_cxl").mkdir(parents=True)
        for path in _PACKAGE.glob("*"):
            if path.suffix == ".so" or path.name == "__pycache__":
                continue
            (self.checkout / "jax_cxl" / path.name).symlink_to(path)
        # These files find their folder by their own path, so they are copies and not links.
        for name in ("__init__.py", "_native.py"):
            (self.checkout / "jax_cxl" / name).unlink()
            (self.checkout / "jax_cxl" / name).write_bytes((_PACKAGE / name).read_bytes())

    def run_there(self, *path: pathlib.Path) -> subprocess.CompletedProcess[str]:
        """Runs Python in the checkout, with `path` as the only other source of native modules."""
        # -S leaves out the finder of an editable install, -E the folders that Bazel adds.
        program = (
            f"import sys; sys.path += {[str(p) for p in (*path, self.site_without_jax_cxl())]};"
            " import jax_cxl; from jax_cxl import _core; print(_core.__file__)"
        )
        return _run("-S", "-E", "-c", program, cwd=self.checkout)

    def site_without_jax_cxl(self) -> pathlib.Path:
        folder = self.folder / "others"
        folder.mkdir()
        for site in (entry for entry in sys.path if entry.endswith("site-packages")):
            for path in pathlib.Path(site).iterdir():
                link = folder / path.name
                if not path.name.startswith("jax_cxl") and not link.exists():
                    link.symlink_to(path)
        return folder

    def add_native_module(self, folder: pathlib.Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        core = importlib.import_module("jax_cxl._core").__file__
        (folder / pathlib.Path(core).name).symlink_to(core)

    def test_its_native_modules_are_found(self):
        installed = self.folder / "site/jax_cxl"
        self.add_native_module(installed)
        ended = self.run_there(installed.parent)
        self.assertEqual(pathlib.Path(ended.stdout.strip()).parent, installed, ended.stderr)

    def test_without_any_it_says_what_to_do(self):
        ended = self.run_there()
        self.assertNotEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("has no native module _core for Python", ended.stderr)
        self.assertIn("pip install -e", ended.stderr)

    def test_the_site_is_made_without_any(self):
        hooks = self.checkout / "docs/_site"
        hooks.mkdir(parents=True)
        (hooks / "native.py").write_bytes((_ROOT / "docs/_site/native.py").read_bytes())
        modules = [module for module, *_ in command_line.COMMANDS.values()]
        program = (
            f"import sys; sys.path += {[str(self.site_without_jax_cxl())]};"
            f" sys.path.insert(0, {str(hooks)!r}); import importlib, native;"
            f" [importlib.import_module(name) for name in {[*modules, 'jax_cxl.ops.start_done']}];"
            " print(importlib.import_module('jax_cxl').psum.__doc__)"
        )
        ended = _run("-S", "-E", "-c", program, cwd=self.checkout)
        self.assertIn("Example:", ended.stdout, ended.stderr)

    def test_its_own_native_modules_come_first(self):
        installed = self.folder / "site/jax_cxl"
        own = self.checkout / "jax_cxl"
        for folder in (installed, own):
            self.add_native_module(folder)
        ended = self.run_there(installed.parent)
        self.assertEqual(pathlib.Path(ended.stdout.strip()).parent, own, ended.stderr)


@absltest.skipUnless("JAX_CXL_WHEEL" in os.environ, "JAX_CXL_WHEEL does not name a wheel")
class WheelTest(absltest.TestCase):
    def test_contents(self):
        with zipfile.ZipFile(os.environ["JAX_CXL_WHEEL"]) as archive:
            names = archive.namelist()
            (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            description = archive.read(metadata).decode()
        # Package indexes do not have the files of the repository, so links must be whole addresses.
        links = re.findall(r"\]\(([^)]*)\)", description)
        self.assertEmpty([link for link in links if not link.startswith("http")])
        self.assertIn("## Numbers", description)
        folders = {name.partition("/")[0] for name in names}
        self.assertTrue(all(f.startswith("jax_cxl") for f in folders), folders)
        for name in names:
            self.assertNotRegex(name, r"test|BUILD|\.cc$|\.h$|results/|__pycache__")
        for name in ("py.typed", "_core.pyi", "__main__.py"):
            self.assertIn(f"jax_cxl/{name}", names)
        sources = {str(path.relative_to(_PACKAGE.parent)) for path in _PACKAGE.rglob("*.py")}
        self.assertContainsSubset(sources, names)
        self.assertTrue(
            any(re.fullmatch(r"jax_cxl/_core\.(cpython-311-.*|abi3)\.so", name) for name in names)
        )


if __name__ == "__main__":
    absltest.main()
