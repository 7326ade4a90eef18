"""Runs the programs of tests/programs as jobs of several processes."""

import os
import pathlib
import subprocess
import sys

# Seconds within which errors come and processes are gone, where these have a processor when they
# need one; CI grants more.
SOON = float(os.environ.get("JAX_CXL_TEST_SOON", "1"))

PROGRAMS = pathlib.Path(__file__).parent / "programs"


def launch_command(*modules: str) -> tuple[str, ...]:
    """Returns the command that launches programs which import these modules, in less time."""
    forked = pathlib.Path(__file__).parent / "forked_launch.py"
    return (sys.executable, str(forked), ",".join(modules))


def start(
    program: str,
    *arguments: str,
    processes: int = 2,
    devices_per_process: int = 1,
    environment: dict[str, str] | None = None,
    launcher: tuple[str, ...] = (),
) -> subprocess.Popen[str]:
    """Starts a program under the launcher; output and errors are pipes.

    Args:
      program: in tests/programs.
      *arguments: of the program.
      processes: ranks.
      devices_per_process: devices of each.
      environment: variables besides those of this process.
      launcher: further options of it.
    """
    return subprocess.Popen(
        [
            *launch_command("jax.numpy", "jax.sharding", "absl.app", "jax_cxl.lax"),
            *("-n", str(processes), "--devices-per-process", str(devices_per_process)),
            *launcher,
            *(str(PROGRAMS / program), *arguments),
        ],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
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


def incoherent() -> bool:
    """Returns whether tests that name no pool run on an incoherent one (conftest.py)."""
    return os.environ.get("JAX_CXL_POOL", "").startswith("incoherent:")
