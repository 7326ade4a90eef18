"""Runs a script as several ranks on this machine: `python -m jax_cxl.launch -n 2 SCRIPT`.

The ranks are JAX processes that find each other: `jax.distributed.initialize()` without arguments
works in the script, as under Slurm, mpirun or Kubernetes, and the script needs no change to run
there. See `python -m jax_cxl.launch --help`.

Three kinds of process take part. The launcher, which has the process id that the user knows, only
passes on signals. The supervisor, its child, starts and ends the ranks. Whichever of the two is
killed, the other or the kernel ends the rest.
"""

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence

from jax_cxl._launch import process, rank, supervisor
from jax_cxl._launch.environment import launched as launched

_USAGE = """\
python -m jax_cxl.launch [-n N] [--devices-per-process K] [--no-prefix]
                                [--grace SECONDS] [--restarts N] [--restart-lost N]
                                [--go-on] [--post-mortem FILE]
                                (SCRIPT | -m MODULE) [ARG ...]"""

_DESCRIPTION = """\
Runs SCRIPT as N processes (ranks) on this machine, as `python SCRIPT ARG ...` each.

jax.distributed.initialize() without arguments connects them. The script needs no
change to run under Slurm or mpirun instead."""

_EPILOG = """\
examples:
  python -m jax_cxl.launch train.py --steps=10
  python -m jax_cxl.launch -n 4 --devices-per-process 2 train.py
  python -m jax_cxl.launch -n 2 -m my_package.train --steps=10

devices:
  On CPUs a rank has one device, or K. On GPUs rank r sees GPU r, or the K GPUs from
  r*K on; set JAX_LOCAL_DEVICE_IDS to choose otherwise, for example 0 to share one GPU.
  JAX_PLATFORMS, XLA_FLAGS and all other variables reach the ranks as they are.

output:
  Each line is marked with its rank and stays whole. Rank 0 reads the standard input,
  the others /dev/null. With -n 1 the streams are the launcher's own.

end:
  When a rank fails, the others get SIGTERM and after the grace period SIGKILL; Ctrl-C
  and SIGTERM reach all ranks likewise, a second one kills them. What ranks started in
  the background ends with the last rank. A rank that ends with status 0 does not end
  the others, even if they wait for it. With --restarts N all ranks then start again, up
  to N times, and find in JAX_CXL_LAUNCH_RESTARTS how often; a signal to the launcher
  ends the job for good.

  With --restart-lost N a rank that fails starts again alone, up to N times in all, while
  the others go on and wait for it in jax_cxl.regroup(rejoin=True). With --go-on they go
  on without it, in jax_cxl.regroup(); the status is then 0 if a rank ended well. A rank
  that fails has the grace period to come to its end. With either the launcher hosts
  JAX's coordination service: rank 0 may fail like any other.

  After a failure the launcher says who waited for whom in a collective, and whom it came down to;
  with --post-mortem, python -m jax_cxl status FILE tells more.

  The status is that of the first rank to fail, or 128 plus the number of the signal
  that ended this rank or the launcher (130 after Ctrl-C)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the launcher. It takes over the process: signal handlers and orphaned descendants.

    Args:
        arguments: The command line, without the program's name; that of the process by default.

    Returns:
        The status to exit with.
    """
    job = _parse(arguments)
    # A signal that is ignored, as under nohup, stays so.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signals = [s for s in numbers if signal.getsignal(s) != signal.SIG_IGN]
    # Until both processes have their handlers, signals wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    process.become_subreaper()
    strangers = process.descendants()
    launcher = os.getpid()
    child = os.fork()
    if child == 0:
        # A session of its own: what kills the launcher's group leaves someone to clean up.
        os.setsid()
        status = 1
        try:
            status = supervisor.supervise(job, launcher, signals)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    for number in signals:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        print(f"jax_cxl.launch: the supervisor was killed by signal {-status}", file=sys.stderr)
        status = 128 - status
    # Nothing is left unless the supervisor came to grief.
    while left := process.descendants() - strangers:
        process.send(left, signal.SIGKILL)
        time.sleep(0.02)
    return status


def _parse(arguments: Sequence[str] | None) -> supervisor.Job:
    """Returns the job that the command line describes."""
    parser = argparse.ArgumentParser(
        prog="jax_cxl.launch",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n", type=_positive, default=2, metavar="N", help="number of ranks (default: 2)"
    )
    parser.add_argument(
        "--devices-per-process", type=_positive, metavar="K", help="devices of each rank"
    )
    parser.add_argument("-m", action="store_true", help="run a module, as python -m does")
    parser.add_argument(
        "--no-prefix", action="store_true", help="do not mark lines of output with their rank"
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="time between asking a rank to end and killing it (default: 3)",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="times that all ranks start again after one has failed (default: 0)",
    )
    parser.add_argument(
        "--restart-lost",
        type=int,
        default=0,
        metavar="N",
        help="times that a rank which has failed starts again alone (default: 0)",
    )
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="let the others go on when a rank fails",
    )
    parser.add_argument(
        "--post-mortem",
        metavar="FILE",
        help="keep what the ranks did last in this file, if one fails",
    )
    # One list: with a positional of its own for the script argparse would eat a `--` behind it.
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    command = options.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        parser.error("SCRIPT or -m MODULE is missing")
    if options.grace < 0:
        parser.error("--grace must not be negative")
    if options.restarts < 0 or options.restart_lost < 0:
        parser.error("--restarts and --restart-lost must not be negative")
    if options.restarts and (options.restart_lost or options.go_on):
        parser.error("--restarts starts all ranks again: not with --restart-lost or --go-on")
    if not options.m and not os.path.isfile(command[0]):
        parser.error(f"no such file: {command[0]}")
    return supervisor.Job(
        kind=rank.MODULE if options.m else rank.SCRIPT,
        name=command[0],
        arguments=tuple(command[1:]),
        size=options.n,
        devices_per_process=options.devices_per_process,
        prefix=not options.no_prefix,
        grace=options.grace,
        restarts=options.restarts,
        go_on=options.go_on,
        restart_lost=options.restart_lost,
        post_mortem=options.post_mortem,
    )


def _positive(text: str) -> int:
    """Returns a positive number, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
