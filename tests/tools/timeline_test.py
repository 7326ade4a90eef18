"""`trace` and the search for late ranks, on given records."""

import json
import random

from absl.testing import absltest, parameterized

from jax_cxl._commands.status import analysis, trace
from jax_cxl._job import lateness


def _call(number, submitted, started, finished, **others):
    return {
        "number": number,
        "identity": 100 + number,
        "group": 7,
        "name": "psum",
        "what": "psum: all_reduce sum of 8 float32",
        "site": "train.py:33 (step)",
        "submitted": submitted,
        "started": started,
        "finished": finished,
        "code": "OK",
        "waiting_for": -1,
    } | others


def _record(rank, calls, members):
    return {
        "rank": rank,
        "registered": True,
        "pid": 1000 + rank,
        "host": 'a"b',
        "boot_id": "of another kernel",
        "calls": calls,
        "groups": {7: list(members)},
        "last_sign_of_life": 1e9 + 5000.0,
        "last_sign_of_life_steady": 5000.0,
        "gave_up": None,
        "submitted_calls": len(calls),
        "operations": [
            {
                "name": "psum",
                "calls": len(calls),
                "bytes": 32 * len(calls),
                "seconds_waited": 0.5,
                "seconds_worked": 0.25,
                "failed": 0,
            }
        ],
    }


def _job(delays, work=0.001, compute=0.01, since=1e9):
    """Returns a job whose rank r comes delays[i][r] seconds late to call i."""
    ranks = len(delays[0])
    calls = [[] for _ in range(ranks)]
    now = since
    for number, late in enumerate(delays, 1):
        arrivals = [now + compute + delay for delay in late]
        start = max(arrivals)
        now = start + work
        for rank, arrival in enumerate(arrivals):
            calls[rank].append(_call(number, arrival, start, now))
    records = [_record(rank, calls[rank], range(ranks)) for rank in range(ranks)]
    return analysis.analyze([analysis.Rank(record, "running") for record in records])


class LatenessTest(parameterized.TestCase):
    def test_who_was_last_how_often_and_by_how_much(self):
        job = _job([(0.0, 0.004, 0.001), (0.0, 0.0, 0.002), (0.0, 0.006, 0.001)])
        by_rank = [rank.late for rank in job.ranks]
        self.assertEqual([late.last for late in by_rank], [0, 2, 1])
        self.assertAlmostEqual(by_rank[1].median, 0.004, places=5)
        self.assertAlmostEqual(by_rank[1].lost, 0.008, places=5)

    @parameterized.parameters(1, 4)
    def test_a_rank_that_is_late_in_each_step_is_named(self, calls_of_a_step):
        chance = random.Random(1)
        delays = []
        for _ in range(200):
            delays.append([chance.expovariate(1000) for _ in range(4)])
            delays[-1][2] += 0.005
            # The other calls of a step follow at once, with much shorter delays.
            delays += [[chance.expovariate(1e5) for _ in range(4)]] * (calls_of_a_step - 1)
        job = _job(delays)
        self.assertEqual([rank.late.persistent for rank in job.ranks], [False, False, True, False])
        self.assertIn("rank 2 came last to ", job.ranks[2].late.sentence())

    @parameterized.product(ranks=(2, 4), kind=("even", "heavy", "rare"))
    def test_equal_ranks_are_not(self, ranks, kind):
        """In the 1,000 runs of all cases there is no false alarm, whatever the delays are."""
        draw = {
            "even": lambda chance: chance.uniform(0.0, 0.02),
            "heavy": lambda chance: 1e-3 * chance.paretovariate(1.1),
            "rare": lambda chance: 0.5 if chance.random() < 0.02 else 0.0,
        }[kind]
        for seed in range(1000 // 6 + 1):
            chance = random.Random(f"{ranks} {kind} {seed}")
            job = _job([[draw(chance) for _ in range(ranks)] for _ in range(120)])
            late = [rank.late.sentence() for rank in job.ranks if rank.late.persistent]
            self.assertEmpty(late)

    def test_few_calls_do_not_suffice(self):
        job = _job([(0.0, 0.005)] * 99)
        self.assertFalse(job.ranks[1].late.persistent)
        self.assertTrue(_job([(0.0, 0.005)] * 100).ranks[1].late.persistent)

    def test_clocks_of_hosts_need_not_agree(self):
        job = _job([(0.0, 0.005)] * 100)
        for call in job.ranks[1].record["calls"]:
            for time in ("submitted", "started", "finished"):
                call[time] -= 3600
        late = lateness.of_ranks([rank.record for rank in job.ranks])
        self.assertTrue(late[1].persistent)


def check_format(timeline):
    """Checks a timeline against the Trace Event Format, as its viewers read it."""
    open_bars, flows = {}, {}
    names = set()
    for event in timeline["traceEvents"]:
        assert event["ph"] in "XMsf", event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int), event
        assert isinstance(event["name"], str) and event["name"], event
        if event["ph"] == "M":
            names.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0, event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            open_bars.setdefault((event["pid"], event["tid"]), []).append(event)
        else:
            assert event["cat"], event
            flows.setdefault((event["cat"], event["id"]), []).append(event)
    rounding = 0.5
    for track, bars in open_bars.items():
        assert ("thread_name", *track) in names, track
        # Bars of a track are disjoint, or one contains the other.
        stack = []
        for bar in sorted(bars, key=lambda bar: (bar["ts"], -bar["dur"])):
            while stack and stack[-1] <= bar["ts"] + rounding:
                stack.pop()
            assert not stack or bar["ts"] + bar["dur"] <= stack[-1] + rounding, bar
            stack.append(bar["ts"] + bar["dur"])
    for ends in flows.values():
        start, finish = ends
        assert (start["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e"), ends
        assert start["ts"] <= finish["ts"], ends
        for end in ends:  # An arrow binds to a bar around it.
            bars = open_bars[end["pid"], end["tid"]]
            assert any(
                b["ts"] - rounding <= end["ts"] <= b["ts"] + b["dur"] + rounding for b in bars
            ), end


class TraceTest(absltest.TestCase):
    def test_a_timeline(self):
        job = _job([(0.0, 0.005), (0.003, 0.0)])
        timeline = json.loads(json.dumps(trace.of_job("a pool", job)))
        check_format(timeline)
        events = timeline["traceEvents"]
        calls = [event for event in events if event.get("cat") == "call"]
        self.assertLen(calls, 4)
        self.assertEqual(calls[0]["args"]["line"], "train.py:33 (step)")
        self.assertEqual(calls[0]["args"]["what"], "psum: all_reduce sum of 8 float32")
        self.assertEqual(calls[0]["args"]["group"], [0, 1])
        self.assertAlmostEqual(calls[0]["dur"], 6000, delta=1)
        waiting = [e for e in events if e["name"] == "waiting" and e["pid"] == 0]
        self.assertAlmostEqual(waiting[0]["dur"], 5000, delta=1)
        arrows = [(e["ph"], e["pid"]) for e in events if e["ph"] in "sf"]
        self.assertEqual(arrows, [("s", 1), ("f", 0), ("s", 0), ("f", 1)])

    def test_calls_at_the_same_time_and_calls_without_an_end(self):
        job = _job([(0.0, 0.005)] * 3)
        calls = job.ranks[0].record["calls"]
        calls.append(_call(4, calls[0]["submitted"] + 1e-3, 0.0, 0.0))
        timeline = trace.of_job("a pool", job)
        check_format(timeline)
        under_way = timeline["traceEvents"]
        (bar,) = [e for e in under_way if e.get("args", {}).get("number") == 4]
        self.assertEqual(bar["args"]["status"], "under way")
        self.assertEqual(bar["tid"], 1)

    def test_clocks_that_do_not_agree(self):
        job = _job([(0.0, 0.005)] * 3)
        for call in job.ranks[1].record["calls"]:
            for time in ("submitted", "started", "finished"):
                call[time] += 3600
        check_format(trace.of_job("a pool", job))

    def test_no_calls(self):
        check_format(
            trace.of_job("", analysis.analyze([analysis.Rank(_record(0, [], ()), "gone")]))
        )


if __name__ == "__main__":
    absltest.main()
