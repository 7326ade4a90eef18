"""Two hosts of the same name count as two hosts, and containers of one host as one host."""

import re
import sys
import tempfile

import job
import pytest
import two_kernels
from absl.testing import absltest

from jax_cxl._job import process_identity


class IdentityTest(absltest.TestCase):
    def test_kernels_are_told_by_their_boot_id(self):
        self.assertRegex(process_identity.boot_id(), r"[0-9a-f-]{36}")
        here = {
            "boot_id": process_identity.boot_id(),
            "pid_namespace": process_identity.pid_namespace(),
        }
        self.assertTrue(process_identity.pid_means_the_same(here))
        self.assertFalse(process_identity.pid_means_the_same(here | {"pid_namespace": 1}))
        self.assertTrue(process_identity.on_this_kernel(here | {"pid_namespace": 1}))
        self.assertFalse(process_identity.on_this_kernel(here | {"boot_id": "another"}))


@absltest.skipIf(two_kernels.missing(), two_kernels.missing())
class EqualNamesTest(absltest.TestCase):
    """Both processes have pid 1, and their hosts have the same name."""

    def setUp(self):
        super().setUp()
        self.hosts = two_kernels.Hosts()
        self.addCleanup(self.hosts.close)
        self.folder = self.enter_context(tempfile.TemporaryDirectory())

    def start(
        self,
        how: str,
        same_kernel: bool = False,
        options: str = "&coherence=coherent",
        own_shm: bool = False,
    ):
        pool = "shm:?size=64MiB" if own_shm else f"file:{self.folder}/pool?size=64MiB{options}"
        before = ("sh", "-c", 'mount -t tmpfs tmpfs /dev/shm; exec "$@"', "sh") if own_shm else ()
        program = str(job.PROGRAMS / "two_hosts" / "in_turns.py")
        port = str(two_kernels.free_port())
        running = [
            self.hosts.start(
                *(0 if same_kernel else process, *before, sys.executable, program, port),
                *(str(process), pool, how),
            )
            for process in range(2)
        ]
        for process in running:
            self.addCleanup(process.kill)
        return running

    def test_ranks_live(self):
        for process in self.start("end"):
            stdout, stderr = process.communicate(timeout=240)
            self.assertEqual(process.returncode, 0, stdout + stderr)
            self.assertIn("sum 2", stdout)

    def test_death_on_the_other_host_is_noticed_by_the_heartbeat(self):
        first, second = self.start("die")
        second.communicate(timeout=240)
        stdout, stderr = first.communicate(timeout=240)
        found = re.search(r"lost rank 1 after ([\d.]+) s: (.*)", stdout)
        self.assertIsNotNone(found, stdout + stderr)
        self.assertIn("rank 1 (pid 1 on host localhost) is gone: its heartbeat stopped", found[2])
        self.assertGreater(float(found[1]), 4)
        self.assertLess(float(found[1]), 6 + 10 * job.SOON)

    @pytest.mark.long
    def test_coherence_between_hosts_is_said_in_words(self):
        for process in self.start("end", options=""):
            _, stderr = process.communicate(timeout=240)
            self.assertEqual(process.returncode, 1, stderr)
            for words in ("the ranks run on 2 hosts", "coherence=flush", "coherence=coherent"):
                self.assertIn(words, stderr)

    @pytest.mark.long
    def test_containers_that_do_not_share_dev_shm(self):
        for process in self.start("end", same_kernel=True, own_shm=True):
            _, stderr = process.communicate(timeout=240)
            self.assertEqual(process.returncode, 1, stderr)
            self.assertIn("PoolNotFoundError", stderr)
            self.assertIn("Containers of one host have to share /dev/shm", stderr)

    def test_containers_of_one_kernel(self):
        # In two pid namespaces a pid means different processes, so heartbeats have to show who is
        # alive.
        for process in self.start("end", same_kernel=True, options=""):
            stdout, stderr = process.communicate(timeout=240)
            self.assertEqual(process.returncode, 0, stdout + stderr)


if __name__ == "__main__":
    absltest.main()
