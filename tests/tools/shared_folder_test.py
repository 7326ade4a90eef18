"""Files in shared memory are gone when the process that made them ends, however it ends."""

import os
import signal
import subprocess
import sys
import time

import shared_folder
from absl.testing import absltest

_PROGRAM = """
import time, shared_folder
with shared_folder.folder() as name:
    open(f"{name}/file", "w").close()
    print(name, flush=True)
    time.sleep(60)
"""


class SharedFolderTest(absltest.TestCase):
    def test_the_end_of_the_block(self):
        with shared_folder.folder() as name:
            self.assertTrue(os.path.isdir(name))
        self.assertFalse(os.path.exists(name))

    def test_an_error(self):
        with self.assertRaises(KeyError), shared_folder.folder() as name:
            raise KeyError
        self.assertFalse(os.path.exists(name))

    def test_a_process_that_is_killed(self):
        environment = dict(os.environ, PYTHONPATH=os.path.dirname(shared_folder.__file__))
        command = [sys.executable, "-c", _PROGRAM]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        ) as process:
            name = process.stdout.readline().strip()
            self.assertTrue(os.path.exists(f"{name}/file"))
            os.killpg(process.pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while os.path.exists(name) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(os.path.exists(name))


if __name__ == "__main__":
    absltest.main()
