"""Without a launcher, the other ranks learn how a program ended."""

import subprocess
import sys

from absl.testing import absltest, parameterized

_PROGRAM = """
import atexit, sys, threading
from jax_cxl._job.ending import program_ending
program_ending.watch()
atexit.register(lambda: print(f"told {program_ending.reason()!r}", flush=True))
def raise_exit(code):
    raise SystemExit(code)
def catch(code):
    try:
        sys.exit(code)
    except SystemExit:
        pass
def keep(code):
    try:
        sys.exit(code)
    except SystemExit:
        kept = sys.exc_info()[1]  # A cycle, as absl.app makes one.
        raise
"""


class ReasonTest(parameterized.TestCase):
    @parameterized.parameters(
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(256)", 0, ""),
        ("sys.exit(3)", 3, "status 3"),
        ("sys.exit(-1)", 255, "status 255"),
        ("sys.exit('no such file')", 1, "status 1: no such file"),
        ("exit(3)", 3, "status 3"),
        ("raise_exit(3)", 3, "status 3"),
        ("keep(3)", 3, "status 3"),
        ("from absl import app; app.run(lambda _: 3)", 3, "status 3"),
        ("raise ValueError('on purpose')", 1, "ValueError: on purpose"),
        # JAX's error for a host callback that raises.
        (
            r"raise ValueError('JAX: Traceback (most recent call last):\n  at\nKeyError: 3\n')",
            1,
            "ValueError: JAX: KeyError: 3",
        ),
        ("catch(3)", 0, ""),
        ("catch(3); sys.exit(4)", 4, "status 4"),
        ("t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()", 0, ""),
    )
    def test_of(self, end, status, reason):
        ended = subprocess.run(
            [sys.executable, "-c", f"{_PROGRAM}\n{end}"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(ended.returncode, status, ended.stderr)
        self.assertEqual(ended.stdout, f"told {reason!r}\n")


if __name__ == "__main__":
    absltest.main()
