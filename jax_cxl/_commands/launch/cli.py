"""The command `python -m jax_cxl.launch -n 2 SCRIPT`, which runs a script as several ranks.

Three kinds of process take part. The launcher has the process id that the user knows, and only
passes on signals. The supervisor, its child, starts and ends the ranks. If the launcher or the
supervisor is killed, the other one or the kernel ends the remaining processes.
"""

import argparse
import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence

from jax_cxl._commands import option_types
from jax_cxl._commands.launch import supervisor
from jax_cxl._commands.launch.job import Job
from jax_cxl._job import processes
from jax_cxl._job.launched import entry_point
from jax_cxl._nccl import library as nccl

# A job needs --oversubscribe if it has more ranks than the larger of two limits: _ANY_MACHINE, and
# _PER_CORE for each core. A rank that imports JAX takes a second of a core and 150 MB to start.
_ANY_MACHINE = 64
_PER_CORE = 8

_DESCRIPTION = """\
Runs SCRIPT as N processes (ranks) on this machine. Each runs `python SCRIPT ARG ...`.

jax.distributed.initialize() without arguments connects them. The script needs no
change to run under Slurm or mpirun instead."""

_EPILOG = """\
examples:
  python -m jax_cxl.launch train.py --steps=10
  python -m jax_cxl.launch -n 4 --devices-per-process 2 train.py
  python -m jax_cxl.launch -n 2 -m my_package.train --steps=10
  python -m jax_cxl.launch -n 2 --replace-collectives train_with_jit.py

devices:
  On CPUs a rank has one device, or K devices. On GPUs rank r sees GPU r, or the K GPUs
  from r*K on. JAX_LOCAL_DEVICE_IDS overrides this, for example 0 to share one GPU.
  The launcher passes JAX_PLATFORMS, XLA_FLAGS and all other variables on unchanged.

collectives:
  With --replace-collectives the ranks' collectives go through the shared memory pool,
  whatever made them: shardings under jax.jit, jax.lax, jax.pmap, a library. SCRIPT
  need not know of jax_cxl. The launcher sets JAX_CXL_REPLACE_COLLECTIVES=1 for the
  ranks, unless you have set it to "strict". Then a collective that XLA would have to
  execute itself is an error.

output:
  Each line has its rank as a prefix and stays whole. Rank 0 reads the standard input,
  and other ranks read /dev/null. With -n 1 the rank has the launcher's own streams.
  On a terminal, a line that rank 0 rewrites by carriage returns, such as a progress bar,
  stays one line.

end:
  When a rank fails, the others get SIGTERM, and after the grace period SIGKILL. Ctrl-C
  and SIGTERM to the launcher do the same; a second signal kills the ranks. Processes that
  ranks have started in the background end with the last rank. A rank that ends with
  status 0 does not end the others, even if they wait for it. With --restarts N all ranks
  start again after a failure, up to N times; JAX_CXL_LAUNCH_RESTARTS has the count. A
  signal to the launcher ends the job without a restart.

  With --go-on the others continue without the rank that fails, by jax_cxl.regroup(); the
  status is 0 if any rank ends with status 0. A rank that fails has the grace period to end.
  The launcher hosts JAX's coordination service, so that rank 0 may fail too.

  After a failure the launcher prints which ranks waited for which in a collective, and
  which rank was the cause. With --post-mortem FILE, python -m jax_cxl status FILE shows
  more.

  The status is that of the first rank to fail, or 128 plus the number of the signal
  that ended this rank or the launcher (130 after Ctrl-C)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the launcher, and returns the status to exit with.

    It takes over the process's signal handlers and orphaned descendants.
    """
    job = _parse(arguments)
    # A signal that is ignored, as under nohup, stays ignored.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signals = [s for s in numbers if signal.getsignal(s) != signal.SIG_IGN]
    # Block the signals until the launcher and the supervisor are ready for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    processes.become_subreaper()
    strangers = processes.descendants()
    launcher = os.getpid()
    child = os.fork()
    if child == 0:
        # Give the supervisor its own session, so that a signal to the launcher's group does not
        # kill it. It has to clean up.
        os.setsid()
        status = 1
        try:
            status = supervisor.Supervisor(job, launcher).run(signals)
        except BaseException:
            traceback.print_exc()
            print(
                "jax_cxl.launch: this looks like a fault of jax_cxl: please report it, with the end"
                " of the output of python -m jax_cxl doctor",
                file=sys.stderr,
            )
        finally:
            sys.stderr.flush()
            os._exit(status)
    status = _wait(child, signals)
    if status < 0:
        print(f"jax_cxl.launch: the supervisor was killed by signal {-status}", file=sys.stderr)
        status = 128 - status
    # If the supervisor was killed, it has left processes behind, so kill them.
    while left := processes.descendants() - strangers:
        processes.send(left, signal.SIGKILL)
        time.sleep(0.02)
    return status


def _wait(child: int, signals: Sequence[signal.Signals]) -> int:
    """Passes signals on to a child until it ends; returns its exit code.

    The signals stay blocked, and sigwait takes them. With handlers and a blocking waitpid instead,
    a signal that arrives just before the call of waitpid would be passed on only after the child
    has ended.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        received = signal.sigwait([*signals, signal.SIGCHLD])
        if received != signal.SIGCHLD:
            os.kill(child, received)


def _parse(arguments: Sequence[str] | None) -> Job:
    usage = "%(prog)s [OPTION ...] (SCRIPT | -m MODULE) [ARG ...]"
    parser = nccl.command_parser("jax_cxl.launch", _DESCRIPTION, usage=usage, epilog=_EPILOG)
    add = parser.add_argument
    flag = functools.partial(add, action="store_true")
    number = option_types.whole_number
    add("-n", type=number(1), default=2, metavar="N", help="number of ranks (default: 2)")
    add("--devices-per-process", type=number(1), metavar="K", help="devices of each rank")
    flag("-m", help="run a module, as python -m does")
    flag("--no-prefix", help="do not prefix lines of output with their rank")
    add(
        "--grace",
        type=option_types.seconds,
        default=3.0,
        metavar="SECONDS",
        help="time between asking a rank to end and killing it (default: 3)",
    )
    count = functools.partial(add, type=number(0), default=0, metavar="N")
    count("--restarts", help="how many times all ranks start again after a failure (default: 0)")
    flag("--go-on", help="let the other ranks continue when a rank fails")
    add(
        "--post-mortem",
        type=option_types.output_file,
        metavar="FILE",
        help="if a rank fails, write the last calls of all ranks to this file",
    )
    flag(
        "--replace-collectives",
        help="move the data of all of XLA's collectives between ranks through the pool",
    )
    flag("--nccl", help="send the collectives of NCCL between all GPUs through the pool")
    flag(
        "--bind-cores",
        help="keep each rank on cores of its own: an equal share of the cores of this machine",
    )
    flag(
        "--oversubscribe",
        help=f"allow more than {_ANY_MACHINE} ranks, and more than {_PER_CORE} for each core",
    )
    # Take the script and its arguments as one list. After a positional argument, argparse would
    # drop a `--`.
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    job = parser.parse_args(arguments, Job())
    if job.command[:1] == ["--"]:
        del job.command[0]
    if not job.command:
        parser.error("SCRIPT or -m MODULE is missing")
    if job.restarts and job.go_on:
        parser.error("--restarts starts all ranks again: not with --go-on")
    if (job.replace_collectives or entry_point.wanted()) and not entry_point.is_installed():
        parser.error(entry_point.absent())
    if job.nccl:
        try:
            one_gpu = job.devices_per_process in (None, 1)
            added = nccl.environment("all", one_gpu=one_gpu)
        except FileNotFoundError as error:
            parser.error(f"--nccl: {error}")
        print(f"jax_cxl: --nccl: {nccl.describe('all')}", file=sys.stderr, flush=True)
        os.environ.update(added)
    if not job.m and not os.path.isfile(job.command[0]):
        parser.error(f"no such file: {job.command[0]}")
    cores = len(os.sched_getaffinity(0))
    most = max(_ANY_MACHINE, _PER_CORE * cores)
    if job.n > most and not job.oversubscribe:
        parser.error(
            f"-n {job.n} starts {job.n} Python processes on {cores} cores. If you want this,"
            f" add --oversubscribe; without it the limit is {most} on this machine"
        )
    if job.bind_cores and job.n > cores:
        parser.error(f"--bind-cores: {cores} cores are not enough for {job.n} ranks")
    return job
