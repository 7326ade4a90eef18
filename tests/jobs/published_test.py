"""A job publishes trees, and other jobs read them meanwhile, with other numbers of processes."""

import importlib.util
import pathlib
import threading
import unittest

import job
import pytest
import shared_folder
from absl.testing import absltest, parameterized

_KILLS, _SERVED = "lab.kills.store_kills", "lab.kills.served_kills"
_MODULES = ("ml_dtypes", "jax_cxl")


class StoreTest(parameterized.TestCase):
    @parameterized.parameters(3, 1)
    @pytest.mark.sample(2)
    def test_jobs_of_other_sizes_read_meanwhile(self, paths):
        layouts = [(2, 1, True), (1, 2, False), (3, 1, False)]
        done = {}
        with shared_folder.folder() as folder:
            files = ",".join(str(pathlib.Path(folder) / str(i)) for i in range(paths))
            where = f"--where=file:{files}?size=64MiB"

            def run(processes, devices, publish):
                done[processes, devices] = job.run(
                    "store/versions.py",
                    *(where, f"--publish={publish}"),
                    processes=processes,
                    devices_per_process=devices,
                    modules=_MODULES,
                )

            threads = [threading.Thread(target=run, args=layout) for layout in layouts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for processes, devices, _ in layouts:
                ended = done[processes, devices]
                self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
                self.assertEqual(ended.stdout.count("done with"), processes)

    def test_threads_read_and_change_names_in_another_order_on_each_process(self):
        with shared_folder.folder() as folder:
            where = f"--where=file:{folder}/a?size=256MiB"
            done = job.run("store/threads.py", where, modules=_MODULES)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("problems: []"), 2, done.stdout + done.stderr)

    def test_errors_of_one_process_are_errors_of_all(self):
        with shared_folder.folder() as folder:
            done = job.run(
                "store/disagree.py", f"--where=file:{folder}/a?size=64MiB", modules=_MODULES
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("done with"), 2)

    def test_processes_wait_as_long_as_the_first_and_try_again_after_a_timeout(self):
        with shared_folder.folder() as folder:
            done = job.run(
                *("store/waits.py", f"--where=file:{folder}/a?size=64MiB"),
                modules=_MODULES,
                environment={"JAX_CXL_TIMEOUT": "3"},
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            for text in ("no version newer than 3 within 5 s", "is being read", "done with"):
                self.assertEqual(done.stdout.count(text), 2, done.stdout + done.stderr)

    def test_kills(self):
        # Killing one publisher and one reader takes a second.
        kills = max(3, int(4 * job.SECONDS))
        for arguments in ((), ("--paths=3", "--parity=1")):
            done = job.run(_KILLS, f"--kills={kills}", *arguments, processes=1, modules=_MODULES)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn('"wrong": 0', done.stdout)

    @unittest.skipUnless(
        importlib.util.find_spec("torch"), "PyTorch is not installed: pip install torch"
    )
    def test_kills_of_a_trainer_and_a_server(self):
        kills = max(4, int(4 * job.SECONDS))
        done = job.run(_SERVED, f"--kills={kills}", processes=1, modules=(*_MODULES, "torch"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn('"torn": 0, "wrong": 0', done.stdout)
        done = job.run(_SERVED, "--kills=300", "--break", processes=1, modules=(*_MODULES, "torch"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is torn", done.stdout)

    @pytest.mark.long
    def test_the_kills_see_what_is_overwritten(self):
        done = job.run(_KILLS, "--kills=200", "--break", processes=1, modules=_MODULES, timeout=250)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout + done.stderr, "of version .* is wrong|damaged")


if __name__ == "__main__":
    absltest.main()
