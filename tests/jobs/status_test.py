"""`python -m jax_cxl status`, `clean` and `doctor`, and the launcher's post mortem."""

import fcntl
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from unittest import mock

import jax
import job
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._commands.status import analysis, doctor, pools


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
        job = analysis.analyse([_rank(r, [_call(1)]) for r in range(3)])
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
        job = analysis.analyse(ranks)
        self.assertEqual([rank.waits_for for rank in job.ranks], [[1], [], [1]])
        self.assertEqual(list(job.culprits), [1])
        self.assertIn(f"rank 1 (pid 1001 on host a) {words}; it had finished", job.culprits[1])
        self.assertEmpty(job.late)

    @parameterized.parameters(False, True)
    def test_a_rank_that_runs_is_a_culprit_only_if_the_job_has_failed(self, failed):
        gave_up = {"reason": "x"} if failed else None
        ranks = [_rank(r, [_call(1), _WAITING], gave_up=gave_up) for r in (0, 2)]
        ranks.insert(1, _rank(1, [_call(1)]))
        job = analysis.analyse(ranks)
        blamed, other = (job.culprits, job.late) if failed else (job.late, job.culprits)
        self.assertEqual(list(blamed), [1])
        self.assertIn("rank 1 (pid 1001 on host a) is in no collective", blamed[1])
        self.assertEmpty(other)
        words = "culprit: " if failed else "the others wait for "
        self.assertEqual(analysis.verdicts(job), [words + blamed[1]])

    def test_the_chain_is_followed_to_its_end(self):
        def inside(waiting_for):
            return [_call(2, finished=0, waiting_for=waiting_for)]

        ranks = [_rank(0, inside(1)), _rank(1, inside(2)), _rank(2, inside(0), state="stopped")]
        job = analysis.analyse(ranks)
        self.assertEqual(list(job.culprits), [2])

    def test_a_silent_heart_on_another_host(self):
        ranks = [
            _rank(0, [_call(2, finished=0, waiting_for=1)], state="unknown"),
            _rank(1, [_INSIDE], state="unknown", alive_at=4.0),
        ]
        job = analysis.analyse(ranks)
        self.assertIn("no sign of life for 6.0 s", job.culprits[1])

    def test_clocks_of_hosts_are_never_compared(self):
        ranks = [
            _rank(0, [_call(2, finished=0, waiting_for=1)], state="unknown"),
            _rank(1, [_INSIDE], state="unknown", clock=-40.0),
            _rank(2, [_INSIDE], state="unknown", clock=40.0),
        ]
        for beaten in (None, {0: 6, 1: 5, 2: 7}):
            job = analysis.analyse(ranks, beaten)
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
        job = analysis.analyse(ranks, {0: 6, 1: 0})
        self.assertEqual(list(job.culprits), [1])
        # A pool that was kept: no rank has a heartbeat, so a missing one says nothing about a rank.
        self.assertEmpty(analysis.analyse(ranks, {0: 0, 1: 0}).culprits)

    def test_when_all_are_gone_the_one_without_a_word_is_to_blame(self):
        failed = _call(2, code="PEER_LOST", waiting_for=2)
        ranks = [_rank(r, [failed], state="gone", gave_up={"reason": "x"}) for r in (0, 1)]
        ranks.append(_rank(2, [_INSIDE], state="gone"))
        self.assertEqual(list(analysis.analyse(ranks).culprits), [2])

    def test_any_record_is_read_without_harm(self):
        calls = [_call(2, finished=0, waiting_for=99)]
        job = analysis.analyse([_rank(0, calls, members=()), _rank(1, [])])
        self.assertEmpty(job.culprits)


def _status(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "jax_cxl", "status", *arguments],
        env={**os.environ, "COLUMNS": "200"},  # no line of the table is wrapped
        capture_output=True,
        text=True,
    )


def _wait_for_children(pid: int, count: int) -> list[int]:
    deadline = time.monotonic() + 60
    while True:
        found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(found) == count:
            return [int(child) for child in found]
        assert time.monotonic() < deadline, f"{pid} has {len(found)} children, not {count}"
        time.sleep(0.01)


def _wait_for_end(pid: int) -> None:
    """Waits until a process that need not be a child has ended."""
    fd = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([fd], [], [], 60)
        assert ended, f"{pid} does not end"
    finally:
        os.close(fd)


class StatusTest(parameterized.TestCase):
    @parameterized.parameters(
        ("late", "late", "is in no collective"), ("stop", "culprits", "is stopped")
    )
    def test_of_a_running_job(self, how, key, words):
        with job.start("failures/stuck.py", how) as running:
            ready = (line for line in running.stdout if "ready" in line)
            pids = [int(next(ready).split()[-1]) for _ in range(2)]
            deadline = time.monotonic() + 60
            while not json.loads((status := _status(str(min(pids)), "--json")).stdout)[0][key]:
                self.assertLess(time.monotonic(), deadline, status)
                time.sleep(0.2)
            self.assertEqual(status.returncode, int(key == "culprits"), status)
            shown = _status(str(min(pids))).stdout
            of_launcher = _status(str(running.pid), "--json")
            prometheus = _status(str(running.pid), "--prometheus").stdout
            with tempfile.TemporaryDirectory() as folder:
                timeline = self.trace(str(running.pid), folder)
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=60)
        (found,) = json.loads(status.stdout)
        (same,) = json.loads(of_launcher.stdout)
        self.assertEqual(same["pool"], found["pool"])
        for rank in found["ranks"]:
            self.assertRegex(rank["calls"][0]["site"], r"sum_of_ranks\.py:\d+ \(")
        self.assertRegex(prometheus, r'calls_total\{.*rank="0",.*operation="psum"\} 4')
        # The last call of rank 0 waits for rank 1.
        calls = [e["args"] for e in timeline["traceEvents"] if e.get("cat") == "call"]
        self.assertLen(calls, 7)
        self.assertEqual([call["status"] for call in calls].count("under way"), 1)
        self.assertEqual([rank["submitted_calls"] for rank in found["ranks"]], [4, 3])
        self.assertEqual(found["ranks"][0]["waits_for"], [1])
        (blamed,) = found[key]
        self.assertEqual(blamed["rank"], 1)
        self.assertIn(words, blamed["why"])
        self.assertEmpty(found[({"late", "culprits"} - {key}).pop()])
        # The line of the program where a late rank is. A stopped rank does not answer.
        (self.assertRegex if how == "late" else self.assertNotRegex)(
            shown, r"stuck\.py.*, line \d+"
        )

    def trace(self, job, folder):
        path = pathlib.Path(folder, "trace.json")
        subprocess.run(
            [sys.executable, "-m", "jax_cxl", "trace", job, "-o", str(path)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return json.loads(path.read_text())

    @parameterized.parameters("die", "all_die")
    def test_post_mortem(self, how):
        with tempfile.TemporaryDirectory() as folder:
            kept = str(pathlib.Path(folder, "kept"))
            with job.start("failures/stuck.py", how, launcher=("--post-mortem", kept)) as ended:
                _, stderr = ended.communicate(timeout=120)
            self.assertEqual(ended.returncode, 137)
            self.assertIn(f"kept for python -m jax_cxl status: {kept}", stderr)
            self.assertEqual(os.stat(kept).st_mode & 0o777, 0o600)
            status = _status(kept, "--json")
            (found,) = json.loads(status.stdout)
            self.assertEqual({rank["state"] for rank in found["ranks"]}, {"gone"})
            for rank in found["ranks"]:
                self.assertEqual([call["name"] for call in rank["calls"][:3]], ["psum"] * 3)
            if how == "die":
                self.assertIn("culprit: rank 1 (pid ", stderr)
                self.assertEqual([culprit["rank"] for culprit in found["culprits"]], [1])
            self.assertIn("psum: all_reduce sum of 1 int32", _status(kept).stdout)
            calls = [e for e in self.trace(kept, folder)["traceEvents"] if e.get("cat") == "call"]
            self.assertGreaterEqual(len(calls), 6)

    def test_post_mortem_of_ranks_that_are_gone_before_the_launcher_hears_of_their_pool(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = str(pathlib.Path(folder, "kept"))
            launcher = ("--post-mortem", kept)
            with job.start("failures/stuck.py", "all_die", launcher=launcher) as ended:
                (supervisor,) = _wait_for_children(ended.pid, 1)
                ranks = _wait_for_children(supervisor, 2)
                os.kill(supervisor, signal.SIGSTOP)
                try:
                    for rank in ranks:
                        _wait_for_end(rank)
                finally:
                    os.kill(supervisor, signal.SIGCONT)
                ended.communicate(timeout=120)
            (found,) = json.loads(_status(kept, "--json").stdout)
        for rank in found["ranks"]:
            self.assertEqual([call["name"] for call in rank["calls"]], ["psum"] * 3)

    def test_what_only_has_the_name_of_a_pool_is_skipped(self):
        name = f"jax_cxl.skip-{os.getpid()}"
        paths = [
            pathlib.Path("/dev/shm", f"{name}.{kind}") for kind in ("fifo", "sparse", "random")
        ]
        for path in paths:
            self.addCleanup(path.unlink)
        os.mkfifo(paths[0])
        paths[1].write_bytes(b"not all zeros, or the next job would remove it")
        os.truncate(paths[1], 1 << 40)
        paths[2].write_bytes(b"random" * 1000)
        held = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in paths]
        status = _status()
        for fd in held:
            os.close(fd)
        self.assertNotIn("Traceback", status.stderr)
        self.assertNotIn(name, status.stderr + status.stdout)

    @parameterized.parameters("--json", "--prometheus")
    def test_a_reader_that_leaves(self, form):
        with job.start("failures/stuck.py", "late") as running:
            next(line for line in running.stdout if "ready" in line)
            read, write = os.pipe()
            os.close(read)
            command = [sys.executable, "-m", "jax_cxl", "status", str(running.pid), form]
            status = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
            os.close(write)
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=60)
        self.assertEqual((status.returncode, status.stderr), (128 + signal.SIGPIPE, ""))

    def test_no_job_is_told_from_one_of_another_user(self):
        self.assertIn("no job found on shm:there-is-none", _status("shm:there-is-none").stderr)
        with subprocess.Popen(["sleep", "60"]) as sleeper:
            of_sleeper = _status(str(sleeper.pid)).stderr
            sleeper.kill()
        self.assertIn(f"no job found: process {sleeper.pid}", of_sleeper)
        self.assertIn("there is no process 4194305", _status("4194305").stderr)
        with (
            mock.patch.object(pools.os, "listdir", side_effect=PermissionError),
            self.assertRaisesRegex(ValueError, "belongs to user .* may look into its job"),
        ):
            pools.named(str(os.getpid()))

    def test_what_is_no_pool_is_refused(self):
        status = _status(__file__)
        self.assertEqual(status.returncode, 2)
        self.assertIn("is not a jax_cxl pool", status.stderr)
        self.assertEqual(_status("tcp:host").returncode, 2)
        self.assertEqual(_status("/nowhere").returncode, 2)


class KeptPoolTest(parameterized.TestCase):
    """Pools with keep=on-failure, of jobs without the launcher."""

    def run_job(self, name: str, killed: tuple[int, ...], how: str = "end") -> None:
        with socket.socket() as reservation:
            reservation.bind(("127.0.0.1", 0))
            port = reservation.getsockname()[1]
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, job.PROGRAMS / "without_launcher.py", f"--process={process}"),
                    *(f"--port={port}", f"--how={how}", f"--pool=shm:{name}?keep=on-failure"),
                ],
                env=os.environ
                | {"JAX_PLATFORMS": "cpu", "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for process in range(2)
        ]
        for process in processes:
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "ready\n")
        # Locked, as by a process that uses the pool. Jobs beside this test remove unlocked pools.
        path = pathlib.Path("/dev/shm", f"jax_cxl.{name}")
        self._file = path.open("rb")
        self.addCleanup(self._file.close)
        fcntl.flock(self._file, fcntl.LOCK_SH)
        for number in killed:
            processes[number].kill()
        for process in processes:
            process.stdin.close()
        for process in processes:
            process.wait(timeout=60)
            process.stdout.close()

    @parameterized.parameters(((0, 1), "end"), ((1,), "fail"))
    def test_of_a_job_that_failed(self, killed, how):
        name = f"kept-{os.getpid()}-{len(killed)}"
        self.run_job(name, killed, how)
        self.assertLen(job.pool_files(name), 1)
        (found,) = json.loads(_status(f"shm:{name}", "--json").stdout)
        self.assertEqual({rank["state"] for rank in found["ranks"]}, {"gone"})
        for rank in found["ranks"]:
            self.assertEqual(rank["calls"][0]["name"], "psum")
        self.assertIn(name, _status().stdout)
        self._file.close()
        subprocess.run([sys.executable, "-m", "jax_cxl", "clean"], check=True)
        self.assertEmpty(job.pool_files(name))

    def test_of_a_job_that_ended_well(self):
        name = f"kept-{os.getpid()}-0"
        self.run_job(name, ())
        self.assertEmpty(job.pool_files(name))


class FilePoolTest(parameterized.TestCase):
    """Pools in files. Only the mappings of the job's processes show where they are."""

    @parameterized.product(offset=["", "&offset=2MiB"], kept=[False, True])
    def test_is_found_without_an_argument(self, offset, kept):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        path = pathlib.Path(folder, "pool")
        if kept:  # It was there before, and keeps its name.
            path.touch(mode=0o600)
        with subprocess.Popen(
            [sys.executable, job.PROGRAMS / "wait_in_pool.py", f"file:{path}?size=16MiB{offset}"],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            self.assertEqual(running.stdout.readline(), "initialized\n")
            for target in ((), (str(running.pid),)):
                status = _status(*target, "--json")
                found = {entry["pool"]: entry for entry in json.loads(status.stdout)}
                self.assertIn(str(path), found, status.stderr)
                self.assertEqual(found[str(path)]["ranks"][0]["pid"], running.pid)
            running.stdin.close()


class LateRankTest(parameterized.TestCase):
    """The warning of the job itself."""

    @parameterized.parameters(("last", True), ("each", False))
    def test_a_late_rank_is_named_once(self, who, is_named):
        done = job.run("late_rank.py", who)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = [line for line in done.stderr.splitlines() if "persistently late" in line]
        self.assertLen(said, is_named, done.stderr)
        if is_named:
            self.assertRegex(said[0], r"^\[0\].*persistently late: rank 1 came last to \d+ of the")


class CleanTest(absltest.TestCase):
    def test_removes_leftovers_and_says_so(self):
        leftover = f"/dev/shm/jax_cxl.clean-test.{os.getpid()}"
        os.close(os.open(leftover, os.O_CREAT | os.O_EXCL, 0o600))
        cleaned = subprocess.run(
            [sys.executable, "-m", "jax_cxl", "clean"], capture_output=True, text=True
        )
        self.assertEqual(cleaned.returncode, 0, cleaned.stderr)
        self.assertFalse(os.path.exists(leftover))


class DoctorTest(absltest.TestCase):
    def test_finds_no_problem_here(self):
        checked = subprocess.run(
            [sys.executable, "-m", "jax_cxl", "doctor"], capture_output=True, text=True
        )
        self.assertNotIn("problem", checked.stdout)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        for word in ("jaxlib", "/dev/shm", "memlock", "cache flushes", "dax", "GPU", "processes"):
            self.assertIn(word, checked.stdout)

    def test_ends_with_the_text_of_a_bug_report(self):
        environment = os.environ | {"JAX_CXL_TIMEOUT": "17", "JAX_CXL_TIMOUT": "18", "TOKEN": "19"}
        checked = subprocess.run(
            [sys.executable, "-m", "jax_cxl", "doctor"],
            env=environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(checked.returncode, 1, checked.stderr)
        first, report = checked.stdout.split("For a bug report")
        self.assertIn("JAX_CXL_TIMOUT: did you mean JAX_CXL_TIMEOUT?", first)
        for text in (
            *(f"jax_cxl {jax_cxl.__version__}", f"jax {jax.__version__}", "processors"),
            *("setting: JAX_CXL_TIMEOUT=17", "/dev/shm: ", "problem: ", "GPU: "),
        ):
            self.assertIn(text, report)
        self.assertNotIn("TOKEN", report)

    def test_a_pool_that_does_not_fit_is_a_problem(self):
        (finding,) = doctor.check_pool(10**9)
        self.assertEqual(finding.level, "problem")
        self.assertIn("python -m jax_cxl clean", finding.text)


if __name__ == "__main__":
    absltest.main()
