"""Names of environment variables, and messages about them."""

import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from jax_cxl import errors
from jax_cxl._job import configuration, information
from jax_cxl._job.launched import entry_point

_ROOT = pathlib.Path(__file__).parents[2]


class UnknownVariablesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("JAX_CXL_REPLACE_COLECTIVES", "JAX_CXL_REPLACE_COLLECTIVES"),
        ("JAX_CXL_TIMOUT", "JAX_CXL_TIMEOUT"),
        ("JAX_CXL_POOl", "JAX_CXL_POOL"),
        ("JAX_CXL_HOSTS", "JAX_CXL_NCCL_HOSTS"),
    )
    def test_the_nearest_name(self, name, nearest):
        (problem,) = configuration.unknown_variables({name: "1", "PATH": "/bin"})
        self.assertIn(f"{name}: did you mean {nearest}?", problem)

    def test_a_name_that_is_like_no_other(self):
        (problem,) = configuration.unknown_variables({"JAX_CXL_X": "1"})
        self.assertIn("docs/start/settings.md lists all", problem)

    def test_known_names(self):
        documents = [
            _ROOT / "CONTRIBUTING.md",
            _ROOT / "lab/README.md",
            *(_ROOT / "docs").rglob("*.md"),
        ]
        named = set()
        for document in documents:
            # The pattern leaves out options of CMake, and macros.
            named |= set(re.findall(r"(?<![-.\w])JAX_CXL_[A-Z_]+\b", document.read_text()))
        self.assertGreater(len(named), 20)
        self.assertEmpty(configuration.unknown_variables(dict.fromkeys(named, "1")))

    def test_warns_once(self):
        with (
            mock.patch.dict(os.environ, JAX_CXL_TIMOUT="1"),
            self.assertLogs("jax_cxl", "WARNING") as logs,
        ):
            configuration.warn_of_unknown_variables.cache_clear()
            configuration.warn_of_unknown_variables()
            configuration.warn_of_unknown_variables()
        self.assertLen(logs.output, 1)


class EntryPointTest(absltest.TestCase):
    def test_the_import_says_that_the_variable_has_no_effect(self):
        # The package has no metadata of an installation, as if it were on PYTHONPATH. Bazel has
        # metadata beside it, in the current folder and on PYTHONPATH.
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "jax_cxl").symlink_to(_ROOT / "jax_cxl")
        program = (
            "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p];"
            f"sys.path.insert(0, {str(folder)!r}); import jax_cxl; import jax_cxl"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=os.environ | {"JAX_CXL_REPLACE_COLLECTIVES": "1", "PYTHONPATH": ""},
            capture_output=True,
            text=True,
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stderr.count(entry_point.absent()), 1, ended.stderr)

    def test_it_is_there(self):
        self.assertTrue(entry_point.is_installed())


class LogTest(absltest.TestCase):
    def test_a_handler_of_the_root_logger_doubles_nothing(self):
        root, log = logging.getLogger(), logging.getLogger("jax_cxl")
        kept = root.handlers[:], log.handlers[:], log.level
        try:
            root.handlers[:], log.handlers[:] = [], []
            information.begin()
            information.begin()
            (own,) = log.handlers
            with mock.patch.object(own, "emit") as emit:
                log.info("alone")
                self.assertEqual(emit.call_count, 1)
                # When absl is imported, it adds a handler like this one.
                root.addHandler(other := logging.NullHandler())
                with mock.patch.object(other, "handle") as handle:
                    log.info("with another")
                self.assertEqual((emit.call_count, handle.call_count), (1, 1))
        finally:
            root.handlers[:], log.handlers[:] = kept[:2]
            log.setLevel(kept[2])


class MessageTest(absltest.TestCase):
    def test_a_fault_of_jax_cxl_says_how_to_report_it(self):
        self.assertIn("jax_cxl doctor", str(errors.from_code("INTERNAL", "a plan is wrong.")))
        self.assertEqual(str(errors.from_code("UNKNOWN", "a reason")), "a reason")

    def test_the_message_for_a_lost_rank_says_how_to_continue(self):
        self.assertIn("gone. The output", str(errors.from_code("PEER_LOST", "gone.")))
        self.assertEqual(str(errors.from_code("PEER_LOST", "after regroup.")), "after regroup.")


if __name__ == "__main__":
    absltest.main()
