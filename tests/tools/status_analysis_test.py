"""Which rank `python -m jax_cxl status` calls late, and which the culprit."""

from absl.testing import absltest, parameterized

from jax_cxl._commands.status import analysis


def _call(number, *, finished=1.0, started=1.0, code="OK", waiting_for=-1):
    return {
        "number": number,
        "identity": 100 + number,
        "group": 7,
        "what": "psum: all_reduce sum of 8 float32",
        "site": "train.py:33 (step)",
        "submitted": 1.0,
        "started": started,
        "finished": finished,
        "code": code,
        "waiting_for": waiting_for,
    }


def _rank(
    number, calls, *, state="running", members=(0, 1, 2), alive_at=10.0, gave_up=None, clock=0.0
):
    record = {
        "rank": number,
        "pid": 1000 + number,
        "host": "a",
        "calls": calls,
        "groups": {7: list(members)},
        "boot_id": f"kernel {clock}",
        # The clocks of hosts differ.
        "last_sign_of_life": alive_at + clock,
        "last_sign_of_life_steady": alive_at + clock,
        "gave_up": gave_up,
    }
    return analysis.Rank(record, state)


_WAITING = _call(2, started=0, finished=0)
_INSIDE = _call(2, finished=0)


class AnalysisTest(parameterized.TestCase):
    def test_nobody_is_to_blame_when_all_calls_are_done(self):
        job = analysis.analyze([_rank(r, [_call(1)]) for r in range(3)])
        self.assertEmpty(job.culprits)
        self.assertEmpty(analysis.sentences(job))

    @parameterized.parameters(
        ("gone", "is gone"),
        ("stopped", "is stopped"),
        ("ended", "was in no collective when the launcher ended it"),
    )
    def test_a_rank_that_does_not_come(self, state, words):
        ranks = [_rank(r, [_call(1), _WAITING]) for r in (0, 2)]
        ranks.insert(1, _rank(1, [_call(1)], state=state))
        job = analysis.analyze(ranks)
        self.assertEqual([rank.waits_for for rank in job.ranks], [[1], [], [1]])
        self.assertEqual(list(job.culprits), [1])
        self.assertIn(f"rank 1 (pid 1001 on host a) {words}; it had finished", job.culprits[1])
        self.assertEmpty(job.late)

    @parameterized.parameters(False, True)
    def test_a_rank_that_runs_is_a_culprit_only_if_the_job_has_failed(self, failed):
        gave_up = {"reason": "x"} if failed else None
        ranks = [_rank(r, [_call(1), _WAITING], gave_up=gave_up) for r in (0, 2)]
        ranks.insert(1, _rank(1, [_call(1)]))
        job = analysis.analyze(ranks)
        blamed, other = (job.culprits, job.late) if failed else (job.late, job.culprits)
        self.assertEqual(list(blamed), [1])
        self.assertIn("rank 1 (pid 1001 on host a) is in no collective", blamed[1])
        self.assertEmpty(other)
        words = "culprit: " if failed else "the others wait: "
        self.assertEqual(analysis.verdicts(job), [words + blamed[1]])

    def test_the_chain_is_followed_to_its_end(self):
        def inside(waiting_for):
            return [_call(2, finished=0, waiting_for=waiting_for)]

        ranks = [_rank(0, inside(1)), _rank(1, inside(2)), _rank(2, inside(0), state="stopped")]
        job = analysis.analyze(ranks)
        self.assertEqual(list(job.culprits), [2])

    def test_a_silent_heart_on_another_host(self):
        ranks = [
            _rank(0, [_call(2, finished=0, waiting_for=1)], state="unknown"),
            _rank(1, [_INSIDE], state="unknown", alive_at=4.0),
        ]
        job = analysis.analyze(ranks)
        self.assertIn("no sign of life for 6.0 s", job.culprits[1])

    def test_clocks_of_hosts_are_never_compared(self):
        ranks = [
            _rank(0, [_call(2, finished=0, waiting_for=1)], state="unknown"),
            _rank(1, [_INSIDE], state="unknown", clock=-40.0),
            _rank(2, [_INSIDE], state="unknown", clock=40.0),
        ]
        for beaten in (None, {0: 6, 1: 5, 2: 7}):
            job = analysis.analyze(ranks, beaten)
            self.assertEqual([rank.silent for rank in job.ranks], [0, 0, 0])
            self.assertEqual(
                {rank.state for rank in job.ranks}, {"running" if beaten else "unknown"}
            )
            self.assertEmpty(job.culprits)

    def test_a_heart_that_stands_still_on_another_host(self):
        ranks = [
            _rank(0, [_call(2, finished=0, waiting_for=1)], state="unknown"),
            _rank(1, [_INSIDE], state="unknown", clock=40.0),
        ]
        job = analysis.analyze(ranks, {0: 6, 1: 0})
        self.assertEqual(list(job.culprits), [1])
        # This stands for a pool that was kept. No rank has a heartbeat there, so a missing
        # heartbeat says nothing about a rank.
        self.assertEmpty(analysis.analyze(ranks, {0: 0, 1: 0}).culprits)

    def test_when_all_are_gone_the_one_without_a_word_is_to_blame(self):
        failed = _call(2, code="PEER_LOST", waiting_for=2)
        ranks = [_rank(r, [failed], state="gone", gave_up={"reason": "x"}) for r in (0, 1)]
        ranks.append(_rank(2, [_INSIDE], state="gone"))
        self.assertEqual(list(analysis.analyze(ranks).culprits), [2])

    def test_any_record_is_read_without_harm(self):
        calls = [_call(2, finished=0, waiting_for=99)]
        job = analysis.analyze([_rank(0, calls, members=()), _rank(1, [])])
        self.assertEmpty(job.culprits)


if __name__ == "__main__":
    absltest.main()
