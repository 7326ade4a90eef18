"""How processes wait for each other while jax_cxl starts, and learn who cannot come.

A process that dies or refuses its settings would keep the others waiting until JAX's coordination
service aborts them. Each therefore says in JAX's key-value store that it has come, or why it
cannot:

    jax_cxl/arrival/A/P   of process P in its attempt A to initialize: who it is, and what failed

If `python -m jax_cxl.launch` starts successors of ranks that fail, these come alone: there nobody
waits for arrivals. Before JAX has connected the processes there is no key-value store. The launcher
says which of its ranks have begun to connect (_launch/board.py).
"""

import atexit
import contextlib
import functools
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from jax_cxl import _compat, errors
from jax_cxl._launch import environment as launch_environment
from jax_cxl._launch.board import ENDED, RUNS
from jax_cxl._runtime import making_devices, program_ending

_POLL_SECONDS = 0.02
_T = TypeVar("_T")

_attempt = 0  # Equal in all processes that meet: they initialize equally often.


def await_ranks(timeout: float) -> None:
    """Waits until all ranks of the launcher, if there is one, have begun to connect.

    Raises:
      NotInitializedError: a rank has ended without it, or has not begun within `timeout` seconds.
    """
    board = launch_environment.board
    if board is None:
        return
    launch_environment.note_connecting()
    deadline = time.monotonic() + timeout
    while missing := board.ranks(RUNS) + board.ranks(ENDED):
        if ended := board.ranks(ENDED):
            raise errors.NotInitializedError(
                f"{_names(ended, 'rank')} ended without calling jax_cxl.initialize(), or"
                " jax.distributed.initialize(). All ranks have to call it, before they use a device"
            )
        if time.monotonic() > deadline:
            raise errors.NotInitializedError(
                f"{_names(missing, 'rank')} did not call jax_cxl.initialize() within"
                f" JAX_CXL_CONNECT_TIMEOUT = {timeout:g} s. All ranks have to call it, before they"
                " use a device; raise that time if ranks start so far apart"
            )
        time.sleep(_POLL_SECONDS)


def begin(processes: Sequence[int] | None, timeout: float) -> None:
    """Says that this process has come, and waits until all have.

    Args:
      processes: who has to come, None for all.
      timeout: for how many seconds to wait.

    Raises:
      NotInitializedError: a process has ended, has failed or has not come in time.
    """
    global _attempt
    _attempt += 1
    if not _several():
        return
    _post(None)
    expected = set(range(_compat.process_count()) if processes is None else processes)

    def missing() -> list[int]:
        # One that has failed since `wait_for` looked has not come: `wait_for` looks again.
        return sorted(expected - {p for p, who in _arrivals().items() if who["failure"] is None})

    def problem() -> str:
        return (
            f"{_names(missing())} did not call jax_cxl.initialize() within"
            f" JAX_CXL_CONNECT_TIMEOUT = {timeout:g} s: look at what it printed last, or raise that"
            " time if processes start so far apart"
        )

    deadline = time.monotonic() + timeout
    if not _compat.has_backend():
        # Here, because some may wait for this process's devices before they lower a collective.
        wait_for(lambda: making_devices.announced() >= set(missing()) or None, timeout, problem)
        jax.devices()
    wait_for(lambda: not missing() or None, deadline - time.monotonic(), problem)


def wait_for(look: Callable[[], _T | None], timeout: float, problem: Callable[[], str] | str) -> _T:
    """Waits until `look` returns something, and returns it.

    Raises:
      NotInitializedError: another process has ended or failed; or `problem`, after `timeout`
        seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            _check_others()
        except errors.NotInitializedError:
            # What it was to give, such as the reason why there is no pool, came before it failed.
            if (found := look()) is None:
                raise
            return found
        if (found := look()) is not None:
            return found
        if time.monotonic() > deadline:
            raise errors.NotInitializedError(problem if isinstance(problem, str) else problem())
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def telling_failures(begins: bool = False) -> Any:
    """Tells the other processes of an exception in its body.

    Args:
      begins: whether `begin` would have come after the body.
    """
    global _attempt
    try:
        yield
    except Exception as error:
        _attempt += begins
        if _several():
            _post(f"{type(error).__name__}: {error}")
        raise


def _several() -> bool:
    client = _compat.coordination_client()
    return client is not None and _compat.process_count() > 1 and not launch_environment.goes_on()


def _post(failure: str | None) -> None:
    who = {"pid": os.getpid(), "start": _start_of(os.getpid()), "host": socket.gethostname()}
    who |= {"pid_namespace": _pid_namespace(), "failure": failure}
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # The service may be gone.
        _compat.coordination_client().key_value_set(
            f"{_folder()}{_compat.process_id()}", json.dumps(who), allow_overwrite=True
        )


def _arrivals() -> dict[int, dict[str, Any]]:
    entries = _compat.coordination_client().key_value_dir_get(_folder())
    return {int(key.rpartition("/")[2]): json.loads(text) for key, text in entries}


def _folder() -> str:
    return f"jax_cxl/arrival/{_attempt}/"


def _check_others() -> None:
    if not _several():
        return
    for process, who in sorted(_arrivals().items()):
        if process == _compat.process_id():
            continue
        name = f"process {process} (pid {who['pid']} on host {who['host']})"
        if who["failure"] is not None:
            reason = who["failure"].removesuffix(".")
            raise errors.NotInitializedError(
                f"{name} could not start jax_cxl: {reason}. All processes have to start again."
            )
        here = who["host"] == socket.gethostname() and who["pid_namespace"] == _pid_namespace()
        if here and _start_of(who["pid"]) != who["start"]:
            raise errors.NotInitializedError(
                f"{name} ended before jax_cxl had started: look at what it printed last. All"
                " processes have to start again."
            )


def _names(numbers: Sequence[int], noun: str = "process") -> str:
    plural = {"process": "processes", "rank": "ranks"}[noun]
    return f"{noun if len(numbers) == 1 else plural} " + ", ".join(map(str, numbers))


@functools.cache
def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_of(pid: int) -> int:
    """Returns when a process began, in the kernel's ticks; 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # pid (name) state ...; the name may hold spaces and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


@atexit.register
def _tell_of_end() -> None:
    """Tells the others of a program that ends before it has tried to initialize."""
    global _attempt
    if _attempt == 0 and _several():
        _attempt = 1
        why = program_ending.reason() or "it ended normally"
        _post(f"its program ended before it called jax_cxl.initialize() ({why})")
