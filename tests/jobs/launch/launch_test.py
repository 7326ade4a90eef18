"""Tests of `python -m jax_cxl.launch`, run as users run it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

import pytest
from absl.testing import absltest, parameterized
from launch_harness import PROGRAMS, LaunchTestCase, child_of

from jax_cxl import launch
from jax_cxl._commands.launch import cli, cores
from jax_cxl._job import variables
from jax_cxl._job.launched import environment

# The variables of a step of a Slurm job. The launcher must take precedence over them.
_SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_NODELIST": "node[7-8]",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
}
_OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_RANK": "9",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


class ScriptTest(LaunchTestCase):
    """What a script sees."""

    @parameterized.parameters(
        ([],),
        (["--", "-n", "7", "--no-prefix", "--", "-h"],),
        (["", "a b", "*", "--flag=1", "-m", "x\ty"],),
    )
    def test_arguments_reach_the_script_untouched(self, arguments):
        status, stdout, stderr = self.launch("--no-prefix", "show.py", *arguments)
        self.assertEqual((status, stderr), (0, ""))
        ranks = sorted(map(json.loads, stdout.splitlines()), key=lambda shown: shown["rank"])
        self.assertEqual([shown["rank"] for shown in ranks], [0, 1])
        for shown in ranks:
            self.assertEqual(shown["arguments"], arguments)
            self.assertEqual(shown["file"], "show.py")
            self.assertEqual(shown["main"], "from the script's own __main__")
            self.assertEqual(shown["folder"], "programs")
            self.assertTrue(shown["launched"])
            self.assertFalse(shown["jax"])

    def test_ranks_have_cores_of_their_own(self):
        available = sorted(os.sched_getaffinity(0))
        if len(available) < 2:
            self.skipTest("needs two cores: this process may use only one")
        for options, shared in (([], True), (["--bind-cores"], False)):
            status, stdout, stderr = self.launch("--no-prefix", *options, "show.py")
            self.assertEqual((status, stderr), (0, ""))
            first, second = (json.loads(line)["cores"] for line in stdout.splitlines())
            if shared:
                self.assertEqual([first, second], [available] * 2)
            else:
                self.assertEqual(sorted(first + second), available)
                self.assertLessEqual(abs(len(first) - len(second)), 1)
        ranks = str(len(available) + 1)
        status, _, stderr = self.launch("-n", ranks, "--bind-cores", "show.py")
        self.assertEqual(status, 2)
        self.assertIn(f"{len(available)} cores are not enough for {ranks} ranks", stderr)

    def test_threads_of_a_core_stay_together(self):
        # Processors 0 and 4 are the threads of the first core, 3 and 7 those of the last one.
        with mock.patch.object(cores, "_place", lambda processor: (0, processor % 4)):
            shares = [cores.share(range(8), rank, 3) for rank in range(3)]
            self.assertEqual([*shares[0], *shares[1], *shares[2]], [0, 4, 1, 5, 2, 6, 3, 7])
            self.assertEqual(cores.share(range(8), 1, 2), [2, 6, 3, 7])

    def test_runs_a_module(self):
        path = os.pathsep.join([str(PROGRAMS), *filter(None, sys.path)])
        status, stdout, _ = self.launch(
            "-n", "1", "-m", "show", "-n", "3", extra={"PYTHONPATH": path}
        )
        self.assertEqual(status, 0)
        shown = json.loads(stdout)
        self.assertEqual(shown["arguments"], ["-n", "3"])
        self.assertEqual(shown["main"], "from the script's own __main__")

    def test_a_leading_double_dash_ends_the_options(self):
        status, stdout, _ = self.launch("-n", "1", "--", "show.py", "--", "-n")
        self.assertEqual(status, 0)
        self.assertEqual(json.loads(stdout)["arguments"], ["--", "-n"])

    def test_rank_0_reads_the_input(self):
        with self.start("--no-prefix", "show.py", stdin=subprocess.PIPE) as launcher:
            stdout, _ = launcher.communicate("typed", timeout=30)
        shown = {line["rank"]: line["stdin"] for line in map(json.loads, stdout.splitlines())}
        self.assertEqual(shown, {0: "typed", 1: ""})

    def test_ranks_share_a_session_and_no_group(self):
        _, stdout, _ = self.launch("--no-prefix", "show.py")
        ranks = [json.loads(line) for line in stdout.splitlines()]
        self.assertEqual([shown["leads_group"] for shown in ranks], [True, True])
        # Ranks may share a core, and the kernel lets a thread yield only to threads of its own
        # session. So all ranks must be in one session.
        self.assertLen({shown["session"] for shown in ranks}, 1)
        self.assertNotEqual(ranks[0]["session"], os.getsid(0))

    @parameterized.parameters(
        ([], "SCRIPT or -m MODULE is missing"),
        (["missing.py"], "no such file"),
        (["-n", "0", "end.py"], "must be at least 1"),
        (["--devices-per-process", "0", "end.py"], "must be at least 1"),
        (["--grace", "-1", "end.py"], "not negative"),
        (["--restarts", "-1", "end.py"], "must be at least 0"),
    )
    def test_refuses_a_wrong_command_line(self, arguments, message):
        status, stdout, stderr = self.launch(*arguments)
        self.assertEqual((status, stdout), (2, ""))
        self.assertIn(message, stderr)

    def test_the_script_can_spawn_its_own_functions(self):
        status, stdout, stderr = self.launch("spawn.py")
        self.assertEqual(status, 0, stderr)
        self.assertCountEqual(stdout.splitlines(), ["[0] [2, 4]", "[1] [2, 4]"])

    def test_an_error_shows_the_script_only(self):
        status, _, stderr = self.launch("end.py", "raise")
        self.assertEqual(status, 1)
        self.assertIn("RuntimeError: the script's own error", stderr)
        self.assertEqual(stderr.count("  File "), 1, stderr)


class StartTest(LaunchTestCase):
    """Signals while ranks start."""

    def test_a_signal_ends_the_start(self):
        with self.start("-n", "3000", "--oversubscribe", "slow_start.py") as launcher:
            self.wait_for(lambda: len(self.processes()) > 4, 30)
            launcher.send_signal(signal.SIGTERM)
            began = time.monotonic()
            _, stderr = launcher.communicate(timeout=60)
        self.assertEqual(launcher.returncode, 128 + signal.SIGTERM)
        self.assertLess(time.monotonic() - began, 20)
        self.assertIn("SIGTERM: ending all ranks", stderr)


class DistributedTest(LaunchTestCase):
    """The launcher and a real `jax.distributed`."""

    @parameterized.named_parameters(
        ("plain", {}),
        # The launcher takes precedence over all of these variables.
        (
            "in_slurm_and_open_mpi_behind_a_proxy_and_an_old_coordinator",
            {
                **_SLURM,
                **_OPEN_MPI,
                "http_proxy": "http://127.0.0.1:9",
                "https_proxy": "http://127.0.0.1:9",
                "JAX_COORDINATOR_ADDRESS": "192.0.2.1:1",
                "JAX_COORDINATOR_BIND_ADDRESS": "192.0.2.1:1",
            },
        ),
    )
    @pytest.mark.sample(2)
    def test_initialize_without_arguments(self, extra):
        status, stdout, stderr = self.launch(
            "-n", "2", "--devices-per-process", "2", "distributed.py", extra=extra
        )
        self.assertEqual(status, 0, stderr)
        # Gloo's threads print too, even into each other's lines. The script prints after them, so
        # its lines are whole.
        self.assertCountEqual(
            [line for line in stdout.splitlines() if "process" in line],
            [f"[{r}] process {r} of 2, 2 of 4 devices, sum 6" for r in range(2)],
        )

    @parameterized.named_parameters(
        # The last number is the bytes through the pool. Each rank publishes its part of the sum,
        # 1,024 float32.
        ("strictly", ["--replace-collectives"], "strict", "strict", 4096),
        ("against_the_variable", ["--replace-collectives"], "0", "1", 4096),
        ("not_replaced", [], "", "", 0),
    )
    @pytest.mark.sample(3)
    def test_replaces_collectives(self, options, before, after, published):
        extra = {"JAX_CXL_REPLACE_COLLECTIVES": before}
        status, stdout, stderr = self.launch(*options, "jitted_sum.py", extra=extra)
        self.assertEqual(status, 0, stderr)
        self.assertCountEqual(
            [line for line in stdout.splitlines() if "pool" in line],
            [f"[{r}] variable {after!r}, through the pool {published} bytes" for r in range(2)],
        )

    def test_replaces_no_collectives_where_jax_does_not_find_the_entry_point(self):
        arguments = ["--replace-collectives", str(PROGRAMS / "jitted_sum.py")]
        with (
            mock.patch("sys.path", []),
            mock.patch("sys.stderr", io.StringIO()) as stderr,
            self.assertRaises(SystemExit),
        ):
            launch.main(arguments)
        self.assertIn("pip install .", stderr.getvalue())

    def test_comes_first_where_jax_was_imported_before(self):
        program = (
            "import jax; from jax_cxl._job.launched import detect; detect.install();"
            "from jax._src.clusters import ClusterEnv; print(ClusterEnv._cluster_types[0].name)"
        )
        shown = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        self.assertEqual(shown.stdout, "jax_cxl\n")

    # If rank 1 raises an error or calls sys.exit, it runs JAX's shutdown, which waits for the other
    # ranks. os._exit does not run it.
    @parameterized.parameters(("raise", 1), ("exit", 5), ("_exit", 5))
    @pytest.mark.sample(3)
    def test_a_failing_rank_ends_one_that_swallows_sigterm(self, how, expected):
        extra = {"JAX_PLATFORMS": "cpu"}
        with self.start("--grace=0.5", "preempted.py", how, extra=extra) as launcher:
            assert launcher.stdout is not None
            self.assertIn("connected", launcher.stdout.readline())
            self.assertIn("connected", launcher.stdout.readline())
            started = time.monotonic()
            _, stderr = launcher.communicate(timeout=60)
            self.assertLess(time.monotonic() - started, 15)
        self.assertEqual(launcher.returncode, expected)
        self.assertIn(f"rank 1 failed with status {expected}; ending the others", stderr)

    @parameterized.parameters("launcher", "supervisor")
    def test_sigkill_ends_ranks_that_swallow_sigterm(self, victim):
        with self.start("preempted.py", extra={"JAX_PLATFORMS": "cpu"}) as launcher:
            assert launcher.stdout is not None
            self.assertIn("connected", launcher.stdout.readline())
            self.assertIn("connected", launcher.stdout.readline())
            supervisor = child_of(launcher.pid)
            if victim == "supervisor":
                # A stopped launcher cannot clean up, so the kernel alone has to end the ranks.
                launcher.send_signal(signal.SIGSTOP)
                os.kill(supervisor, signal.SIGKILL)
            else:
                launcher.kill()
            own = {launcher.pid, supervisor}
            self.wait_for(lambda: not set(self.processes()) - own, seconds=30)
            launcher.kill()
            launcher.communicate()
        self.wait_for(lambda: not self.processes(), seconds=30)


class EndTest(LaunchTestCase):
    """How jobs end, and what they leave."""

    @parameterized.parameters(
        ("0", 0, None),
        ("3", 3, "rank 1 failed with status 3"),
        ("255", 255, "rank 1 failed with status 255"),
        ("raise", 1, "rank 1 failed with status 1"),
        ("-9", 137, "rank 1 was killed by SIGKILL"),
        ("-11", 139, "rank 1 was killed by SIGSEGV"),
    )
    @pytest.mark.sample(3)
    def test_status_of_the_first_rank_to_fail(self, how, expected, message):
        started = time.monotonic()
        status, _, stderr = self.launch("-n", "3", "--grace=50", "end.py", how)
        self.assertEqual(status, expected)
        # This is well before the end of the grace period, because the sleeping ranks obey SIGTERM.
        self.assertLess(time.monotonic() - started, 30)
        said = [line for line in stderr.splitlines() if line.startswith("jax_cxl.launch: ")]
        if message is None:
            self.assertEmpty(said)
        else:
            self.assertEqual(said, [f"jax_cxl.launch: {message}; ending the others"])

    def test_the_rank_that_ended_first_is_named(self):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        status, _, stderr = self.launch("-n", "2", "end_one_by_one.py", f"{folder}/ended")
        self.assertEqual(status, 5)
        self.assertIn(
            "jax_cxl.launch: rank 0 failed with status 5; rank 1 had ended first, with status 0\n",
            stderr,
        )

    def test_a_failing_rank_runs_its_exit_handlers(self):
        status, stdout, _ = self.launch("-n", "3", "exit_handler.py")
        self.assertEqual((status, stdout), (6, "[1] handler\n"))

    def test_a_rank_that_ignores_sigterm_is_killed(self):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        started = time.monotonic()
        status, _, _ = self.launch("-n", "2", "--grace=0.5", "end.py", "4", f"{folder}/ready")
        self.assertEqual(status, 4)
        self.assertGreater(time.monotonic() - started, 0.5)

    def test_a_failed_rank_that_hangs_is_killed_while_the_others_go_on(self):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        status, _, stderr = self.launch(
            *("-n", "2", "--go-on", "--grace=0.5", "hang_at_exit.py", f"{folder}/pid")
        )
        self.assertEqual(status, 0, stderr)
        self.assertIn("rank 1 failed with status 6; the others go on", stderr)

    def test_ranks_start_again(self):
        status, stdout, stderr = self.launch("--restarts=2", "retry.py", "2")
        self.assertEqual((status, sorted(stdout.splitlines())), (0, ["[0] done", "[1] done"]))
        failed = "jax_cxl.launch: rank 1 failed with status 3; ending the others"
        restart = "jax_cxl.launch: restart {} of 2"
        self.assertEqual(
            stderr.splitlines(), [failed, restart.format(1), failed, restart.format(2)]
        )

    def test_ranks_do_not_start_again_for_ever(self):
        status, stdout, stderr = self.launch("--restarts=2", "retry.py", "3")
        self.assertEqual((status, stdout), (3, ""))
        self.assertEqual(stderr.count("failed with status 3"), 3)

    def test_a_signal_ends_a_job_with_restarts(self):
        with self.start("--grace=0.5", "--restarts=5", "family.py") as launcher:
            self._wait_until_ready(launcher)
            launcher.send_signal(signal.SIGTERM)
            _, stderr = launcher.communicate(timeout=60)
        self.assertEqual(launcher.returncode, 128 + signal.SIGTERM)
        self.assertNotIn("restart", stderr)

    @parameterized.product(
        number=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP), arguments=((), ("stubborn",))
    )
    @pytest.mark.sample(5)
    def test_a_signal_to_the_launcher(self, number, arguments):
        with self.start("--grace=0.5", "family.py", *arguments) as launcher:
            self._wait_until_ready(launcher)
            launcher.send_signal(number)
            _, stderr = launcher.communicate(timeout=60)
        self.assertEqual(launcher.returncode, 128 + number)
        self.assertIn(f"jax_cxl.launch: {number.name}: ending all ranks\n", stderr)

    def test_a_second_signal_kills(self):
        with self.start("--grace=600", "family.py", "stubborn") as launcher:
            self._wait_until_ready(launcher)
            launcher.send_signal(signal.SIGINT)
            assert launcher.stderr is not None
            self.assertIn("SIGINT", launcher.stderr.readline())
            launcher.send_signal(signal.SIGINT)
            launcher.communicate(timeout=30)
        self.assertEqual(launcher.returncode, 130)

    # The test makes 8,000 rounds, which is enough to find a launcher that misses signals. A
    # launcher that used a signal handler and waitpid missed one within 500 to 3,500 rounds.
    @pytest.mark.long
    def test_no_signal_is_missed(self):
        command = [sys.executable, str(PROGRAMS / "two_signals.py"), "8000"]
        subprocess.run(command, check=True, timeout=120)

    def test_a_signal_ends_a_job_whose_output_nobody_reads(self):
        with self.start("--grace=0.5", "flood.py") as launcher:
            assert launcher.stdout is not None
            launcher.stdout.readline()  # The job has begun.
            time.sleep(0.5)  # The pipe is full.
            launcher.terminate()
            self.assertEqual(launcher.wait(timeout=30), 143)

    def test_a_reader_that_goes_ends_the_writers(self):
        with self.start("flood.py") as launcher:
            assert launcher.stdout is not None and launcher.stderr is not None
            launcher.stdout.readline()
            launcher.stdout.close()
            self.assertEqual(launcher.wait(timeout=30), 1)
            self.assertIn("BrokenPipeError", launcher.stderr.read())

    @parameterized.parameters("launcher", "supervisor", "group")
    def test_sigkill_leaves_no_process(self, victim):
        with self.start("family.py", "stubborn", start_new_session=True) as launcher:
            self._wait_until_ready(launcher)
            # These are the launcher, the supervisor, and two ranks with two children each.
            self.assertLen(self.processes(), 8)
            if victim == "launcher":
                launcher.kill()
            elif victim == "supervisor":
                os.kill(child_of(launcher.pid), signal.SIGKILL)
            else:
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.communicate(timeout=60)
            self.wait_for(lambda: not self.processes(), seconds=30)
        self.assertIn(launcher.returncode, (-signal.SIGKILL, 128 + signal.SIGKILL))

    def test_background_processes_end_with_the_last_rank(self):
        status, _, _ = self.launch("--grace=0.3", "family.py", "end")
        self.assertEqual(status, 0)

    def _wait_until_ready(self, launcher: subprocess.Popen[str]) -> None:
        assert launcher.stdout is not None
        for _ in range(2):
            self.assertIn("ready", launcher.stdout.readline())


class EnvironmentTest(parameterized.TestCase):
    """The variables of a rank."""

    def _environment(self, base: dict[str, str], *options: str) -> dict[str, str]:
        return cli._parse([*options, __file__]).environment(base, rank=1, port=5)

    @parameterized.parameters(
        ((), {}, "1", None),
        (["--devices-per-process=3"], {}, "3,4,5", "3"),
        ((), {"JAX_LOCAL_DEVICE_IDS": "0"}, "0", None),
        (["--devices-per-process=2"], {"JAX_LOCAL_DEVICE_IDS": "0"}, "0", "2"),
        ((), {"JAX_LOCAL_DEVICE_IDS": "7", variables.RANK: "7"}, "1", None),
    )
    def test_devices(self, options, base, gpus, cpus):
        found = self._environment(base, *options)
        self.assertEqual(found["JAX_LOCAL_DEVICE_IDS"], gpus)
        self.assertEqual(found.get("JAX_NUM_CPU_DEVICES"), cpus)

    @parameterized.parameters(
        ({}, {}),
        ({"http_proxy": "p"}, {"no_proxy": "127.0.0.1"}),
        ({"https_proxy": "p", "no_proxy": "x"}, {"no_proxy": "x,127.0.0.1"}),
        (
            {"grpc_proxy": "p", "no_grpc_proxy": "x", "no_proxy": "y"},
            {"no_grpc_proxy": "x,127.0.0.1", "no_proxy": "y"},
        ),
    )
    def test_loopback_needs_no_proxy(self, base, expected):
        found = self._environment(base)
        self.assertEqual({k: v for k, v in found.items() if k.startswith("no_")}, expected)

    def test_the_users_choices_stay(self):
        base = {"XLA_FLAGS": "--x", "JAX_PLATFORMS": "cuda", "OTHER": "1"}
        self.assertContainsSubset(base, self._environment(base, "--devices-per-process=2"))

    def test_only_ranks_are_launched(self):
        self.assertFalse(
            re.search("LAUNCH_(RANK|SIZE)", " ".join(os.environ)) or environment.launched()
        )


if __name__ == "__main__":
    absltest.main()
