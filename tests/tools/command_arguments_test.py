"""Wrong arguments of the commands are refused at once, with a sentence that helps."""

import contextlib
import importlib
import io
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import __main__ as command_line
from jax_cxl._commands.launch import cli as launch
from jax_cxl._commands.status import doctor
from jax_cxl._nccl import library


def _refused(*arguments: str) -> str:
    """Runs a command, and returns the message with which it refuses its arguments."""
    command, *rest = arguments
    main = importlib.import_module(command_line.COMMANDS[command][0]).main
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            main(rest)
    except SystemExit as refusal:
        assert refusal.code == 2, refusal.code
        return " ".join(stderr.getvalue().split())
    raise AssertionError(f"{arguments} was not refused")


class ArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(
        (("doctor", "--ranks", "0"), "must be at least 1, not 0"),
        (("tune", "table.json", "--turns", "-3"), "must be at least 1, not -3"),
        (("doctor", "--ranks", "two"), "'two' is not a whole number"),
        (("bench", "--sizes", "64XB"), "'64XB' is not a size such as 512, 4KiB or 64MiB"),
        (("bench", "--ranks", "43"), "from 2 to 42, not 43: sums over more ranks"),
        (("bench", "--repeats", "0"), "must be at least 1, not 0"),
        (("bench", "--json", "/missing/a.json"), "there is no folder /missing; create it"),
        (("bench", "--platform", "cuda"), "--platform cuda needs"),
        (("tune", "/missing/a.json"), "there is no folder /missing; create it"),
        (("tune", "a.json", "--ranks", "1"), "must be at least 2, not 1"),
    )
    def test_is_refused(self, arguments, words):
        self.assertIn(words, _refused(*arguments))

    def test_an_unknown_option(self):
        self.assertTrue(_refused("clean", "--xyz").endswith("unrecognized arguments: --xyz"))
        self.assertIn("unrecognized arguments: --rank", _refused("doctor", "--rank", "2"))

    def test_an_unknown_command_has_a_suggestion(self):
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            self.assertEqual(command_line.main(["dcotor"]), 2)
        self.assertIn("no command 'dcotor'; did you mean doctor?", stderr.getvalue())

    def test_no_gpu(self):
        with (
            mock.patch("importlib.util.find_spec"),
            mock.patch.object(library, "has_gpu", lambda: False),
        ):
            self.assertIn("needs an NVIDIA GPU", _refused("bench", "--platform", "cuda"))


class LaunchArgumentsTest(parameterized.TestCase):
    def refused(self, *arguments: str) -> str:
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr), self.assertRaises(SystemExit):
            launch._parse([*arguments, __file__])
        return " ".join(stderr.getvalue().split())

    @parameterized.parameters(
        (("--post-mortem", "/missing/kept"), "there is no folder /missing; create it"),
        (("--post-mortem", "/tmp"), "/tmp is a folder; name a file"),
        (("-n", "5000"), "-n 5000 starts 5000 Python processes on"),
        (("-n", "0"), "must be at least 1, not 0"),
        (("--grace", "nan"), "must be finite and not negative: nan"),
        (("--restarts", "-1"), "must be at least 0, not -1"),
    )
    def test_is_refused(self, arguments, words):
        self.assertIn(words, self.refused(*arguments))

    def test_oversubscribe_allows_any_number(self):
        self.assertEqual(launch._parse(["-n", "5000", "--oversubscribe", __file__]).n, 5000)


class PoolOfTheEnvironmentTest(parameterized.TestCase):
    """`doctor` on `JAX_CXL_POOL`."""

    @parameterized.parameters(
        ("foo", "it starts with 'foo', not with shm:, file: or dax:"),
        ("shm:?size=4000000GiB", "takes 4096000000 MiB"),
        ("dax:/dev/dax99.0", "there is no /dev/dax99.0"),
        ("file:/missing/pool?size=1MiB", "there is no folder /missing: create it"),
    )
    def test_problems(self, uri, words):
        with mock.patch.dict(os.environ, {"JAX_CXL_POOL": uri}):
            (finding,) = doctor.check_pool(2)
        self.assertEqual(finding.level, "problem")
        self.assertIn(words, finding.text)

    def test_a_file_of_the_wrong_size(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "pool")
            path.write_bytes(bytes(1 << 20))
            with mock.patch.dict(os.environ, {"JAX_CXL_POOL": f"file:{path}?size=2MiB"}):
                (small,) = doctor.check_pool(2)
            with mock.patch.dict(os.environ, {"JAX_CXL_POOL": f"file:{path}"}):
                (fits,) = doctor.check_pool(2)
        self.assertEqual((small.level, fits.level), ("problem", "ok"))
        self.assertIn("less than offset and size together, 2 MiB", small.text)

    def test_files_in_one_folder_share_its_space(self):
        with tempfile.TemporaryDirectory() as folder:
            space = os.statvfs(folder)
            mib = space.f_bavail * space.f_frsize * 2 // 3 >> 20
            for uri, level, takes in (
                (f"file:{folder}/a?size={mib}MiB", "ok", mib),
                (f"file:{folder}/a,{folder}/b?size={mib}MiB", "problem", 2 * mib),
            ):
                with mock.patch.dict(os.environ, {"JAX_CXL_POOL": uri}):
                    for finding in doctor.check_pool(2):
                        self.assertEqual(finding.level, level)
                        self.assertIn(f"takes {takes} MiB", finding.text)


class InitializeTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        jax_cxl.shutdown()  # Tests before these may have used a pool in this process.

    def test_a_wrong_uri_is_an_invalid_pool(self):
        with self.assertRaisesRegex(jax_cxl.errors.InvalidPoolError, "it starts with 'foo'"):
            jax_cxl.initialize("foo")

    def test_a_missing_device_needs_no_directory(self):
        with self.assertRaisesRegex(jax_cxl.errors.PoolNotFoundError, "no such device") as caught:
            jax_cxl.initialize("dax:/dev/dax99.0?size=64MiB")
        self.assertNotIn("create its directory", str(caught.exception))


if __name__ == "__main__":
    absltest.main()
