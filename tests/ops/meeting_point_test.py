"""Tests of the waits for other processes. The answers of these processes are made up."""

import math
import os
from unittest import mock

from absl.testing import absltest, parameterized

from jax_cxl import errors
from jax_cxl.ops.host import meeting_point

RANKS = {0: [0], 1: [1], 2: [2, 5], 7: [3, 4]}
LATE = {7: {"pid": 12, "host": "h", "last": "barrier 'a'"}, 2: {}, 1: {}}
NAMES = "rank 1; ranks 2, 5; ranks 3, 4 (pid 12 on host h, last at barrier 'a')"


class MeetingPointTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.core = self.enterContext(mock.patch.object(meeting_point, "_core"))
        self.core.rank_lost.return_value = self.core.rank_left.return_value = False

    def wait(self, *late, timeout=0.02):
        """Waits until no process is late.

        Each time the wait asks which processes are late, it gets the next argument of `late`. After
        the last argument, it gets that one again.
        """
        answers = iter(late)
        meeting_point.wait("barrier 'b'", lambda: next(answers, late[-1]), RANKS, timeout)

    def test_all_come(self):
        self.wait(LATE, {2: {}}, {}, timeout=60)

    @parameterized.parameters(
        (LATE, NAMES, (1, None, None)),
        ({7: LATE[7]}, NAMES.rpartition("; ")[2], (3, 12, "h")),
    )
    def test_they_do_not_come(self, late, names, first):
        with self.assertRaises(errors.CollectiveTimeoutError) as raised:
            self.wait(late)
        error = raised.exception
        self.assertIn(f"barrier 'b': {names} did not arrive within 0.02 s", str(error))
        self.assertEqual((error.rank, error.pid, error.host), first)
        self.assertEqual(error.call, "barrier 'b'")
        self.assertGreater(error.waited_s, 0.02)

    @parameterized.parameters("rank_lost", "rank_left")
    def test_one_has_ended(self, how):
        getattr(self.core, how).side_effect = lambda rank: rank == 3
        with self.assertRaisesRegex(errors.PeerLostError, "rank 3 is gone") as raised:
            self.wait(LATE, timeout=60)
        self.assertEqual((raised.exception.rank, raised.exception.call), (3, "barrier 'b'"))

    @parameterized.parameters(0, -1, math.nan)
    def test_wrong_timeouts(self, timeout):
        with self.assertRaisesRegex(ValueError, "must be greater than 0 seconds"):
            self.wait({}, timeout=timeout)

    @mock.patch.dict(os.environ, {"JAX_CXL_TIMEOUT": "0.05", "JAX_CXL_WARN_AFTER": "0.01"})
    def test_it_warns_once(self):
        with (
            self.assertLogs("jax_cxl", "WARNING") as logged,
            self.assertRaisesRegex(errors.CollectiveTimeoutError, "within 0.05 s"),
        ):
            self.wait({2: {}}, timeout=None)
        (line,) = logged.output
        self.assertIn("barrier 'b' has waited 0 s for ranks 2, 5", line)


if __name__ == "__main__":
    absltest.main()
