"""Runs the programs of tests/programs as jobs of several processes."""

import os
import pathlib
import subprocess
import sys

import quick_compilation

# Seconds within which errors come and processes are gone, on a machine that is not busy. CI allows
# more.
SOON = float(os.environ.get("JAX_CXL_TEST_SOON", "1"))

# How long each random test of jobs runs. C++ tests read the same variable.
SECONDS = float(os.environ.get("JAX_CXL_TEST_SECONDS", "4"))

PROGRAMS = pathlib.Path(__file__).parent / "programs"
INTERPOSE = pathlib.Path(__file__).parent / "interpose"


_ON_CPUS = {"JAX_PLATFORMS": "cpu"}


def quick_environment() -> dict[str, str]:
    """Returns the environment of jobs whose programs compile as quick_compilation.py says."""
    return os.environ | _ON_CPUS | quick_compilation.ENVIRONMENT


def launch_command(*modules: str) -> tuple[str, ...]:
    """Returns the command of a launcher that starts programs which import these modules faster."""
    forked = pathlib.Path(__file__).parent / "forked_launch.py"
    return (sys.executable, str(forked), ",".join(modules))


def start(
    program: str,
    *arguments: str,
    processes: int = 2,
    devices_per_process: int = 1,
    environment: dict[str, str] | None = None,
    launcher: tuple[str, ...] = (),
    forked: bool = True,
    modules: tuple[str, ...] = (),
    session: bool = False,
    quick: bool = True,
) -> subprocess.Popen[str]:
    """Starts a program under the launcher; output and errors are pipes.

    Args:
      program: path of the program in tests/programs.
      *arguments: arguments of the program.
      processes: number of processes.
      devices_per_process: number of devices of each process.
      environment: environment variables besides those of this process.
      launcher: further options of the launcher.
      forked: whether ranks are forks (forked_launch.py), or else new interpreters, as for users.
      modules: what else the program imports that takes long, for forks.
      session: whether the job is a process group of its own, to be killed as a whole.
      quick: whether the programs compile as quick_compilation.py says, or else as for users.
    """
    command = (
        launch_command("jax.numpy", "jax.sharding", "absl.app", "jax_cxl.lax", *modules)
        if forked
        else (sys.executable, "-m", "jax_cxl.launch")
    )
    return subprocess.Popen(
        [
            *command,
            *("-n", str(processes), "--devices-per-process", str(devices_per_process)),
            *launcher,
            *(str(PROGRAMS / program), *arguments),
        ],
        env=(quick_environment() if quick else os.environ | _ON_CPUS) | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=session,
    )


def run(
    program: str, *arguments: str, timeout: float = 280, **options
) -> subprocess.CompletedProcess[str]:
    """Runs a program under the launcher to its end."""
    with start(program, *arguments, **options) as job:
        try:
            stdout, stderr = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            job.terminate()
            stdout, stderr = job.communicate()
            raise AssertionError(f"{program} hangs:\n{stdout}\n{stderr}") from None
    return subprocess.CompletedProcess(job.args, job.returncode, stdout, stderr)


def pool_files(name: str) -> list[str]:
    """Returns the files that a pool `shm:name` has left in /dev/shm."""
    return [file for file in os.listdir("/dev/shm") if name in file]


def incoherent_environment(seed: int, leave_out: str = "") -> dict[str, str]:
    """Returns the environment of jobs on an emulated pool without coherence.

    Args:
      seed: seed of the random moves of cache lines.
      leave_out: an operation of the protocol that then does nothing
        (cc/testing/incoherent/omission.h), "" for none.

    Raises:
      FileNotFoundError: the module that emulates the caches has not been built.
    """
    if not any(INTERPOSE.glob("_testing*.so")):
        raise FileNotFoundError(
            "incoherent pools need the module _testing, which is no part of an installation:"
            " CONTRIBUTING.md says how it is built"
        )
    path = [str(INTERPOSE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "JAX_CXL_TEST_POOL": "incoherent",
        "JAX_CXL_TEST_SEED": str(seed),
        "JAX_CXL_TEST_LEAVE_OUT": leave_out,
        "PYTHONPATH": os.pathsep.join(path),
    }


def incoherent() -> bool:
    """Returns whether tests that name no pool run on an incoherent one (conftest.py)."""
    return os.environ.get("JAX_CXL_TEST_POOL") == "incoherent"
