"""The commands of a release: addresses and versions. They change a copy of the repository."""

import base64
import contextlib
import hashlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from unittest import mock

import yaml
from absl.testing import absltest, parameterized

_ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(_ROOT / "release"))

import addresses  # noqa: E402
import build  # noqa: E402
import version  # noqa: E402

_FILES = {*addresses.FILES, "CHANGELOG.md"}
_TEXT = {".md", ".py", ".toml", ".yml", ".yaml", ".cff", ".cfg", ".txt"}


class _CopyTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.copy = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        for name in _FILES:
            (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
            (self.copy / name).write_text((_ROOT / name).read_text())

    def git(self, *arguments):
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        command = ["git", *identity, *arguments]
        ended = subprocess.run(command, cwd=self.copy, check=True, capture_output=True, text=True)
        return ended.stdout.strip()


class AddressesTest(_CopyTest):
    def test_sets_both_everywhere(self):
        source, docs = "https://forge.example/group/jax_cxl", "https://docs.example/jax_cxl"
        old = addresses.current(self.copy)
        addresses.set_addresses(self.copy, source, docs)
        self.assertEqual(addresses.current(self.copy), (source, docs))
        for name in addresses.FILES:
            text = (self.copy / name).read_text()
            self.assertNotIn(old[0], text, name)
            self.assertIn(source, text, name)
        self.assertIn(f"git clone {source}", (self.copy / "README.md").read_text())
        # Setting the old addresses restores the files.
        addresses.set_addresses(self.copy, *old)
        for name in addresses.FILES:
            self.assertEqual((self.copy / name).read_text(), (_ROOT / name).read_text())

    @parameterized.parameters(
        "forge.example", "https://a b", "https://a/", 'https://a"', "https://"
    )
    def test_refuses(self, address):
        with self.assertRaisesRegex(ValueError, "is not an address"):
            addresses.set_addresses(self.copy, address, "https://docs.example")
        self.assertEqual(addresses.current(self.copy), addresses.current(_ROOT))

    def test_no_other_file_names_them(self):
        source, docs = addresses.current(_ROOT)
        # Git also lists a clone that belongs to another user, if it is told that it may.
        command = ["git", "-c", "safe.directory=*", "ls-files"]
        listed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
        names = [n for n in listed.stdout.splitlines() if pathlib.Path(n).suffix in _TEXT]
        if not names:
            why = listed.stderr.strip() or "none is tracked"
            self.skipTest(f"needs a clone of the repository, and git lists no files here: {why}")
        naming = {
            name
            for name in names
            if (_ROOT / name).exists() and {source, docs} & _addresses_in(_ROOT / name)
        }
        self.assertContainsSubset(naming, addresses.FILES)


def _addresses_in(path):
    text = path.read_text(errors="replace")
    return {address for address in addresses.current(_ROOT) if address in text}


class VersionTest(_CopyTest):
    def setUp(self):
        super().setUp()
        self.git("init", "--quiet")
        self.git("config", "user.name", "test")
        self.git("config", "user.email", "test@localhost")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "Before")

    def test_makes_a_version(self):
        before = (self.copy / "CHANGELOG.md").read_text()
        version.make(self.copy, "7.1.0", "2026-12-01")
        project = tomllib.loads((self.copy / "pyproject.toml").read_text())["project"]
        citation = yaml.safe_load((self.copy / "CITATION.cff").read_text())
        self.assertEqual((project["version"], citation["version"]), ("7.1.0", "7.1.0"))
        self.assertEqual(str(citation["date-released"]), "2026-12-01")
        self.assertIn("jax_cxl_cuda13==7.1.0", project["optional-dependencies"]["cuda13"])
        after = (self.copy / "CHANGELOG.md").read_text()
        self.assertEqual(after.replace("\n## [7.1.0] - 2026-12-01\n", ""), before)
        self.assertEqual(self.git("tag", "--list"), "v7.1.0")
        self.assertEqual(self.git("status", "--porcelain"), "")

    def test_refuses_a_version_without_entries_and_an_older_one(self):
        version.make(self.copy, "7.1.0", "2026-12-01")
        with self.assertRaisesRegex(ValueError, "no entries under"):
            version.make(self.copy, "7.2.0", "2026-12-02")
        for older in ("7.1.0", "7.1.0rc3", "6.9.9"):
            with self.assertRaisesRegex(ValueError, "not newer than v7.1.0"):
                version.make(self.copy, older, "2026-12-02")

    def test_refuses_a_clone_with_changes(self):
        (self.copy / "README.md").write_text("changed")
        with self.assertRaisesRegex(ValueError, "commit them first:\n.*README.md"):
            version.make(self.copy, "7.1.0", "2026-12-01")

    @parameterized.parameters("v7.1.0", "7.1", "7.1.0-rc1", "7.1.0 ", "")
    def test_refuses(self, text):
        with self.assertRaisesRegex(ValueError, "is not a version"):
            version.make(self.copy, text, "2026-12-01")


class SplitWheelTest(absltest.TestCase):
    """The wheels for GPUs and for CPUs, from a wheel that has all modules."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.wheel = self.folder / "jax_cxl-0.1.0-cp312-abi3-linux_x86_64.whl"

    def write(self, *names):
        with zipfile.ZipFile(self.wheel, "w") as archive:
            for name in (*names, "jax_cxl/__init__.py", "jax_cxl/_core.abi3.so"):
                archive.writestr(name, f"content of {name}")
            wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-abi3-linux_x86_64\n"
            archive.writestr("jax_cxl-0.1.0.dist-info/WHEEL", wheel)
            archive.writestr("jax_cxl-0.1.0.dist-info/RECORD", "of all modules")

    def test_pip_installs_it_beside_the_other_wheel(self):
        modules = ["jax_cxl/_cuda.abi3.so", "jax_cxl/_nccl/libnccl.so.2"]
        self.write(*modules)
        made = build.gpu_wheel(self.wheel, self.folder, "13")
        self.assertEqual(made.name, "jax_cxl_cuda13-0.1.0-cp312-abi3-linux_x86_64.whl")
        with zipfile.ZipFile(made) as archive:
            names = [n for n in archive.namelist() if ".dist-info" not in n]
            self.assertEqual(names, modules)
            metadata = archive.read("jax_cxl_cuda13-0.1.0.dist-info/METADATA").decode()
            self.assertIn("Requires-Dist: jax_cxl==0.1.0\n", metadata)
            self.assertIn("License-File: LICENSE\n", metadata)
            self.assertEqual(
                archive.read("jax_cxl_cuda13-0.1.0.dist-info/licenses/LICENSE"),
                (_ROOT / "LICENSE").read_bytes(),
            )
            self.check_record(archive, "jax_cxl_cuda13-0.1.0.dist-info")

    def test_the_other_wheel_has_the_rest(self):
        self.write("jax_cxl/_cuda.abi3.so", "jax_cxl/_nccl/libnccl.so.2", "jax_cxl/_nccl/run.py")
        folder = self.folder / "made"
        folder.mkdir()
        made = build.cpu_wheel(self.wheel, folder)
        self.assertEqual(made.name, self.wheel.name)
        with zipfile.ZipFile(made) as archive:
            names = [n for n in archive.namelist() if ".dist-info" not in n]
            rest = ["jax_cxl/_nccl/run.py", "jax_cxl/__init__.py", "jax_cxl/_core.abi3.so"]
            self.assertEqual(names, rest)
            self.check_record(archive, "jax_cxl-0.1.0.dist-info")

    def test_the_wheel_of_the_library_alone(self):
        made = build.nccl_wheel(b"library", self.folder)
        self.assertEqual(made.name, "jax_cxl_nccl-0.1.0-py3-none-linux_x86_64.whl")
        with zipfile.ZipFile(made) as archive:
            info = "jax_cxl_nccl-0.1.0.dist-info"
            self.check_record(archive, info)
            self.assertNotIn("Requires-Dist", archive.read(f"{info}/METADATA").decode())
            archive.extractall(self.folder)
        inner = self.folder / "jax_cxl_nccl"
        modules = {"__init__.py", "__main__.py", "library.py", "tune.py"}
        files = modules | {"libnccl.so.2", "libnccl.so.2.sha256"}
        self.assertEqual({path.name for path in inner.iterdir() if path.is_file()}, files)
        command = ["sha256sum", "--check", "libnccl.so.2.sha256"]
        subprocess.run(command, cwd=inner, check=True, capture_output=True)
        # -S: without site-packages, so nothing else is imported.
        command = [sys.executable, "-S", "-m", "jax_cxl_nccl", "run", "printenv", "LD_PRELOAD"]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(ended.stdout, f"{inner / 'libnccl.so.2'}\n", ended.stderr)
        for name in ("report", "tune"):
            help_of = [*command[:4], name, "--help"]
            ended = subprocess.run(help_of, cwd=self.folder, capture_output=True, text=True)
            self.assertIn(f"usage: python -m jax_cxl_nccl {name}", ended.stdout, ended.stderr)

    def check_record(self, archive, info):
        lines = archive.read(f"{info}/RECORD").decode().splitlines()
        self.assertCountEqual([line.split(",")[0] for line in lines], archive.namelist())
        for line in lines:
            name, digest, size = line.split(",")
            if digest:
                content = archive.read(name)
                found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
                self.assertEqual(digest, f"sha256={found.rstrip('=')}")
                self.assertEqual(int(size), len(content))

    def test_refuses_a_wheel_without_the_module(self):
        self.write("jax_cxl/_cuda.abi3.so")
        with self.assertRaisesRegex(SystemExit, "is nvcc there"):
            build.gpu_wheel(self.wheel, self.folder, "13")


class BuildTest(absltest.TestCase):
    def test_a_build_that_fails_shows_why(self):
        tools = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        (tools / "uv").write_text("#!/bin/sh\necho no such header\nexit 2\n")
        (tools / "uv").chmod(0o755)
        shown = self.enter_context(contextlib.redirect_stderr(io.StringIO()))
        with self.assertRaisesRegex(SystemExit, "build --sdist"):
            build._sdist(tools, tools)
        self.assertIn("no such header", shown.getvalue())

    def test_refuses_an_abi3_wheel_with_a_module_of_one_version(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        for module in ("_core.abi3.so", "_core.cpython-312-x86_64-linux-gnu.so"):
            with zipfile.ZipFile(folder / "x-1-cp312-abi3-linux_x86_64.whl", "w") as archive:
                archive.writestr(f"jax_cxl/{module}", "")
            wrong = "cpython" in module
            with self.assertRaises(SystemExit) if wrong else contextlib.nullcontext():
                build._check_names(folder / "x-1-cp312-abi3-linux_x86_64.whl")

    def test_refuses_an_nvcc_of_another_version(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        (folder / "nvcc").write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0\n")
        (folder / "nvcc").chmod(0o755)
        with mock.patch.dict(os.environ, {"PATH": f"{folder}:{os.environ['PATH']}"}):
            build._check_compiler("13")
            with self.assertRaisesRegex(SystemExit, "--cuda 12 needs nvcc 12"):
                build._check_compiler("12")


class DocumentsTest(absltest.TestCase):
    def test_the_workflow_builds_each_wheel_that_an_extra_installs(self):
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
        extras = [name for name in project["optional-dependencies"] if name.startswith("cuda")]
        self.assertNotEmpty(extras)
        for document in (".github/workflows/wheels.yml", "RELEASING.md"):
            text = (_ROOT / document).read_text()
            (command,) = re.findall(r"release/build\.py .*", text)
            for extra in extras:
                self.assertIn(f"--cuda {extra.removeprefix('cuda')}", command, document)
        for extra in extras:
            own = f"jax_cxl_{extra}=={project['version']}"
            self.assertIn(own, project["optional-dependencies"][extra])

    def test_citation_has_what_the_format_requires(self):
        citation = yaml.safe_load((_ROOT / "CITATION.cff").read_text())
        self.assertContainsSubset({"cff-version", "message", "title", "authors"}, citation)
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
        self.assertEqual(citation["version"], project["version"])
        (paper,) = citation["references"]
        self.assertEqual(paper["url"], project["urls"]["Paper of CCCL"])

    def test_issue_forms_have_what_a_form_requires(self):
        forms = sorted((_ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
        self.assertLen(forms, 4)
        for form in (f for f in forms if f.name != "config.yml"):
            content = yaml.safe_load(form.read_text())
            self.assertContainsSubset({"name", "description", "body"}, content)
            for part in content["body"]:
                self.assertContainsSubset({"type", "id", "attributes"}, part)
                self.assertIn("label", part["attributes"])


if __name__ == "__main__":
    absltest.main()
