"""A snapshot of one job is restored by jobs with other numbers of processes and devices."""

import pathlib

import job
import pytest
import shared_folder
from absl.testing import absltest, parameterized

# (number of processes, number of devices of each process)
_LAYOUTS = ((2, 1), (1, 1), (2, 1), (2, 2), (1, 3), (3, 1))


class SnapshotsTest(parameterized.TestCase):
    def test_other_layouts(self):
        self.check_layouts(_LAYOUTS[1:4], paths=3, parity=1)

    @parameterized.parameters((1, 0), (3, 1))
    @pytest.mark.long
    def test_all_layouts(self, paths, parity):
        self.check_layouts(_LAYOUTS, paths, parity)

    def check_layouts(self, layouts, paths, parity):
        with shared_folder.folder() as folder:
            files = ",".join(str(pathlib.Path(folder) / str(i)) for i in range(paths))
            for step, (processes, devices) in enumerate(layouts, 1):
                done = job.run(
                    "snapshots/other_layout.py",
                    *(f"--where=file:{files}?size=48MiB", f"--parity={parity}", f"--step={step}"),
                    processes=processes,
                    devices_per_process=devices,
                    modules=("ml_dtypes", "jax_cxl"),
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                saved = f"step {step} saved by {processes * devices} devices"
                self.assertEqual(done.stdout.count(saved), processes)

    @parameterized.parameters(1, 2)
    def test_small_arrays_are_joined(self, devices):
        with shared_folder.folder() as folder:
            done = job.run(
                "snapshots/joined.py",
                f"--where=file:{folder}/joined?size=64MiB",
                processes=2,
                devices_per_process=devices,
                modules=("jax_cxl",),
            )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("joined 600 arrays"), 2)

    def test_trees_of_every_kind(self):
        self.check_trees((2, 1), (1, 1))

    @pytest.mark.long
    def test_trees_of_jobs_with_several_devices_each(self):
        self.check_trees((2, 1), (2, 2), (3, 1))

    def check_trees(self, *layouts):
        with shared_folder.folder() as folder:
            previous = 0
            for step, (processes, devices) in enumerate(layouts, 1):
                done = job.run(
                    "snapshots/trees.py",
                    *(f"--where=file:{folder}/trees?size=64MiB", f"--step={step}"),
                    *(f"--previous={previous}", f"--disagree={step == 1}"),
                    processes=processes,
                    devices_per_process=devices,
                    modules=("ml_dtypes", "jax_cxl", "optax", "flax.nnx", "flax.struct"),
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(done.stdout.count("leaves of"), processes)
                previous = processes

    def test_random_trees(self):
        # A case takes a few hundredths of a second.
        self.check_random_trees(f"--cases={int(10 * job.SECONDS)}", status=0)

    @pytest.mark.long
    def test_wrong_trees_are_found(self):
        self.check_random_trees("--cases=20", "--break", status=1)

    def check_random_trees(self, *arguments, status):
        with shared_folder.folder() as folder:
            arguments = (f"--store=file:{folder}/store?size=64MiB", *arguments)
            done = job.run("lab.fuzz.fuzz_trees", *arguments, modules=("ml_dtypes", "jax_cxl"))
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)


if __name__ == "__main__":
    absltest.main()
