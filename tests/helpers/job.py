"""Runs the programs of tests/programs as jobs of several processes."""

import atexit
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import launch_server
import quick_compilation

# Within these seconds, errors must surface and processes must be gone. The default is for a machine
# that is not busy; CI allows more.
SOON = float(os.environ.get("JAX_CXL_TEST_SOON", "1"))

# How long each random test of jobs runs. C++ tests read the same variable.
SECONDS = float(os.environ.get("JAX_CXL_TEST_SECONDS", "4"))

PROGRAMS = pathlib.Path(__file__).parents[1] / "programs"
INTERPOSE = pathlib.Path(__file__).parents[1] / "interpose"


_ON_CPUS = {"JAX_PLATFORMS": "cpu"}

# Modules that programs of tests/programs import. A launch server imports them before it forks.
_MODULES = ("jax.numpy", "jax.sharding", "absl.app", "jax_cxl.lax")


def quick_environment() -> dict[str, str]:
    """Returns the environment of jobs whose programs compile quickly (quick_compilation.py)."""
    return os.environ | _ON_CPUS | quick_compilation.ENVIRONMENT


def start(
    program: str, *arguments: str, forked: bool = True, **options: Any
) -> launch_server.Launcher | subprocess.Popen[str]:
    """Starts a program under the launcher.

    Args:
      program: path of the program in tests/programs, or a module of lab.
      *arguments: arguments of the program.
      forked: whether launcher and ranks are forks (launch_server.py). Otherwise they are new
        interpreters, as for users.
      **options: those of `_job`.

    Returns:
      The launcher. Its output and errors are pipes.
    """
    command, environment, modules = _job(program, arguments, **options)
    if forked:
        return _server_for(modules, environment).start(command, environment)
    return subprocess.Popen(
        [sys.executable, "-m", "jax_cxl.launch", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    program: str, *arguments: str, timeout: float = 280, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program under the launcher to its end. `start` explains the other arguments.

    Args:
      timeout: seconds after which the job counts as failed.
    """
    return _to_the_end(start(program, *arguments, **options), (program, *arguments), timeout)


def _job(
    program: str,
    arguments: tuple[str, ...],
    *,
    processes: int = 2,
    devices_per_process: int = 1,
    environment: dict[str, str] | None = None,
    launcher: tuple[str, ...] = (),
    modules: tuple[str, ...] = (),
    quick: bool = True,
) -> tuple[list[str], dict[str, str], tuple[str, ...]]:
    """Returns the launcher's command line, the environment, and the modules that forks need.

    Args:
      program: path of the program in tests/programs, or a module of lab.
      arguments: arguments of the program.
      processes: number of processes.
      devices_per_process: number of devices of each process.
      environment: environment variables besides those of this process.
      launcher: further options of the launcher.
      modules: further modules that the program imports and that take long to import.
      quick: whether the programs compile quickly (quick_compilation.py); otherwise they compile as
        for users.
    """
    command = [
        *("-n", str(processes), "--devices-per-process", str(devices_per_process)),
        *launcher,
        *(("-m", program) if program.startswith("lab.") else (str(PROGRAMS / program),)),
        *arguments,
    ]
    variables = quick_environment() if quick else os.environ | _ON_CPUS
    return command, variables | (environment or {}), (*_MODULES, *modules)


def launch(
    *arguments: str,
    environment: Mapping[str, str],
    modules: tuple[str, ...],
    timeout: float = 280,
) -> subprocess.CompletedProcess[str]:
    """Runs the launcher to its end, in a copy of a process that has imported modules already.

    Args:
      *arguments: the launcher's command line.
      environment: all environment variables of the job.
      modules: modules that the job's script imports and that take long to import.
      timeout: seconds after which the job counts as failed.
    """
    launcher = _server_for(modules, environment).start(arguments, environment)
    return _to_the_end(launcher, arguments, timeout)


def _to_the_end(
    launcher: launch_server.Launcher | subprocess.Popen[str],
    arguments: tuple[str, ...],
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Waits for the end of a job. If it takes too long, raises AssertionError with the output."""
    with launcher:
        try:
            stdout, stderr = launcher.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            launcher.terminate()
            stdout, stderr = launcher.communicate()
            raise AssertionError(f"{arguments} hangs:\n{stdout}\n{stderr}") from None
    return subprocess.CompletedProcess(arguments, launcher.wait(), stdout, stderr)


def _server_for(modules: tuple[str, ...], environment: Mapping[str, str]) -> launch_server.Server:
    """Returns the server for jobs that import these modules, with the settings of `environment`."""
    global _server, _servers_settings
    # Python and JAX read variables when they start, so all jobs of a server have the same values.
    # Only the variables of pytest, and those of jax_cxl except JAX_CXL_TEST_*, may differ.
    settings = (
        modules,
        {
            name: value
            for name, value in environment.items()
            if name.startswith("JAX_CXL_TEST_") or not name.startswith(("JAX_CXL_", "PYTEST_"))
        },
    )
    with _lock:
        if _server is None or settings != _servers_settings:
            _close_server()
            _server, _servers_settings = launch_server.Server(modules, environment), settings
        return _server


# The server of the last job. A job with other settings replaces it.
_server: launch_server.Server | None = None
_servers_settings: tuple[tuple[str, ...], dict[str, str]] | None = None
_lock = threading.Lock()  # lab/kills/kill_sweep.py starts jobs on several threads.


@atexit.register
def _close_server() -> None:
    global _server
    if _server is not None:
        _server.close()
    _server = None


def pool_files(name: str) -> list[str]:
    """Returns the files that a pool `shm:name` has left in /dev/shm."""
    return [file for file in os.listdir("/dev/shm") if name in file]


def incoherent_environment(seed: int, leave_out: str = "") -> dict[str, str]:
    """Returns the environment of jobs on an emulated pool without coherence.

    Args:
      seed: seed of the random moves of cache lines.
      leave_out: an operation of the protocol that is made to do nothing
        (cc/testing/incoherent/omission.h), or "" for none.

    Raises:
      FileNotFoundError: the module that emulates the caches has not been built.
    """
    if not any(INTERPOSE.glob("_testing*.so")):
        raise FileNotFoundError(
            "incoherent pools need the module _testing, which is not part of an installation:"
            " CONTRIBUTING.md has the command that builds it"
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
