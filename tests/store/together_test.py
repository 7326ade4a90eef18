"""Processes that read together, while another job acts at each single load of one of them.

Threads stand in for the processes. When the other job acts, each other process of the job either
waits for the one that is overtaken, or has finished.
"""

import concurrent.futures
import re
from unittest import mock

import pytest
import store_harness as harness
import threads
from absl.testing import absltest, parameterized
from loads import act_at
from other_job import KEEP, OtherJob, tree

import jax_cxl
from jax_cxl._store import following

_ACTS = {
    "half": OtherJob.half,
    "1": OtherJob.publish,
    "keep_1": lambda job: job.publish(KEEP + 1),
    "3_keep": lambda job: job.publish(3 * KEEP),
    "again": OtherJob.create_again,
}
_ABSENT = r"has no 'a'|has no version yet|was deleted|has no valid snapshot"
_PROCESSES = 2


class TogetherTest(harness.StoreTest):
    def interleave(self, name, open_reader, call, act, overtaken, errors):
        """Reads again and again, while the other job acts at another load of a process each time.

        Args:
          name: what the other job publishes.
          open_reader: opens the reader of a process.
          call: takes a reader and the other job, and returns the version and the tree that it
            reads.
          act: a key of `_ACTS`.
          overtaken: the process at whose loads the other job acts.
          errors: what the text of an error may be, as a regular expression; None for no errors.
        """
        job = OtherJob(self.where, name)
        processes = threads.Processes(_PROCESSES)
        self.enterContext(processes.running())
        self.enterContext(mock.patch.object(following, "_is_over_processes", lambda _: True))
        elsewhere = self.enterContext(concurrent.futures.ThreadPoolExecutor(1))

        def overtake():
            processes.wait_for_others()
            elsewhere.submit(_ACTS[act], job).result(60)

        readers = [open_reader() for _ in range(_PROCESSES)]
        for number in range(1000):
            job.begin()
            counts = lambda: processes.own == overtaken  # noqa: E731
            with (
                act_at(number, overtake, counts) as loads,
                self.assertNoLogs("jax_cxl"),
                self.subTest(load=number),
            ):
                found = processes.run(lambda own, of=readers: call(of[own], job))
                self.check(job, found, errors)
            if act == "half" and loads.acted:
                job.finish()
            if not loads.acted:
                self.assertGreater(number, 10)
                return
            if act == "again":
                readers = [open_reader() for _ in range(_PROCESSES)]
        self.fail("the call does not end")

    def check(self, job, found, errors):
        failed = [isinstance(each, Exception) for each in found]
        if any(failed):
            self.assertTrue(all(failed), found)
            for error in found:
                self.assertIsInstance(error, jax_cxl.StoreError)
                self.assertTrue(errors and re.search(errors, str(error)), found)
            return
        versions = {version for version, _ in found}
        self.assertLen(versions, 1, found)
        for version, of in found:
            self.assertTrue(job.was_whole(version, of), (version, of))

    @parameterized.product(act=tuple(_ACTS), overtaken=(0, 1))
    @pytest.mark.sample(3)
    def test_read(self, act, overtaken):
        errors = _ABSENT if act == "again" else None
        call = lambda store, _: store.read("a", tree(0))  # noqa: E731
        self.interleave("a", self.open, call, act, overtaken, errors)

    @parameterized.product(act=tuple(_ACTS), overtaken=(0, 1))
    @pytest.mark.sample(5)
    def test_read_the_oldest_version(self, act, overtaken):
        errors = rf"has no version \d+, only|{_ABSENT}"
        call = lambda store, job: store.read("a", tree(0), version=job.first)  # noqa: E731
        self.interleave("a", self.open, call, act, overtaken, errors)

    @parameterized.product(act=tuple(_ACTS), overtaken=(0, 1))
    @pytest.mark.sample(7)
    def test_restore_latest(self, act, overtaken):
        errors = _ABSENT if act == "again" else None
        opened = lambda: jax_cxl.Snapshots(self.where)  # noqa: E731
        call = lambda snapshots, _: snapshots.restore_latest(tree(0))  # noqa: E731
        self.interleave("snapshots", opened, call, act, overtaken, errors)


if __name__ == "__main__":
    absltest.main()
