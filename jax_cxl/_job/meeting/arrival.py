"""How processes wait for each other while jax_cxl starts, and learn which process cannot start.

A process that dies or refuses its settings would keep the others waiting until JAX's coordination
service aborts them. So each process writes to JAX's key-value store that it has arrived, or why it
cannot start:

    jax_cxl/arrival/A/P   for attempt A of process P to initialize: its identity, and its failure
    jax_cxl/arrival/0/P   its identity, and whether it replaces the collectives of programs

JAX makes the devices of all processes together: a process that makes its devices waits until the
others make theirs. Such a process may start jax_cxl only later, when it lowers its first
collective. Other processes may already be in `initialize`. They must not wait there for that
process before they have made their own devices. JAX calls the plugin (_takeover/plugin.py) when it
makes devices, and the plugin writes the entry of attempt 0.

Before JAX has connected the processes there is no key-value store. Until then, the board of the
launcher shows which ranks have begun to connect (launched/board.py).
"""

import atexit
import contextlib
import importlib.metadata
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jaxlib.version

from jax_cxl import _compat, _text, errors
from jax_cxl._job import process_identity, variables
from jax_cxl._job.ending import program_ending
from jax_cxl._job.launched import environment as launch_environment
from jax_cxl._job.launched.board import ENDED, RUNS

# How long processes wait for each other at start-up. This is long enough for a process that
# compiles or loads data before it first communicates.
TIMEOUT_SECONDS = 300

_LONGEST_PAUSE = 0.02
_ADVICE = " All processes have to start again."
_T = TypeVar("_T")

# Equal in all processes that meet, because they initialize equally often.
_attempt = 0
_expected: set[int] = set()  # The processes that meet in this attempt.
_ends: str | None = None  # How this program ends, once it no longer waits for a start.


def await_ranks(timeout: float) -> None:
    """Waits until all ranks of the launcher, if there is one, have begun to connect."""
    board = launch_environment.board
    if board is None:
        return
    launch_environment.note_connecting()

    def all_connect() -> bool | None:
        if ended := board.ranks(ENDED):
            raise errors.NotInitializedError(
                f"{_text.numbered('rank', ended)} ended without calling jax_cxl.initialize(), or"
                " jax.distributed.initialize(). All ranks have to call it before they use a device"
            )
        return not board.ranks(RUNS) or None

    def problem() -> str:
        return (
            f"{_text.numbered('rank', board.ranks(RUNS))} did not call jax_cxl.initialize() within"
            f" JAX_CXL_CONNECT_TIMEOUT = {timeout:g} s. All ranks have to call it before they"
            " use a device. Raise that timeout if ranks start further apart"
        )

    wait_for(all_connect, timeout, problem)


def begin(awaited: Sequence[int], timeout: float, settings: dict[str, Any]) -> None:
    """Records that this process has arrived, and waits until all `awaited` processes have.

    Raises NotInitializedError if a process has ended, has failed or has not arrived in time, or
    runs other versions, and MismatchError if it has other `settings`.
    """
    global _attempt, _expected
    _attempt += 1
    if not _compat.distributed.connected():
        return
    _expected = set(awaited)
    _post(_attempt, None, settings=settings)

    def missing() -> list[int]:
        # A process may have failed since `wait_for` checked. It counts as missing, and `wait_for`
        # checks again.
        come = {p for p, who in _arrivals(_attempt).items() if who["failure"] is None}
        return sorted(_expected - come)

    def problem() -> str:
        return (
            f"{_text.numbered('process', missing())} did not call jax_cxl.initialize() within"
            f" JAX_CXL_CONNECT_TIMEOUT = {timeout:g} s: look at what it printed last, or raise that"
            " timeout if processes start further apart"
        )

    deadline = time.monotonic() + timeout
    with telling_failures():
        if not _compat.backends.made():
            # Make the devices now, once those that have not arrived are making theirs.
            wait_for(lambda: _arrivals(0).keys() >= set(missing()) or None, timeout, problem)
            _check_counts()  # JAX waits two minutes for a process that does not exist.
            jax.devices()
        wait_for(lambda: not missing() or None, deadline - time.monotonic(), problem)
        _check_versions()
        _check_settings(settings)


def attempt() -> int:
    """Returns the number of this attempt to initialize, equal in all processes that meet."""
    return _attempt


def announce(replaces: bool) -> None:
    """Announces that this process makes its devices, and whether it replaces collectives."""
    if _compat.distributed.connected():
        _post(0, None, replaces=replaces)


def check_replacement(replaces: bool) -> None:
    """Checks that all processes replace collectives, or none does. Call it when there are devices.

    Otherwise some processes would wait in the pool, and others would wait in a collective of XLA.
    """
    if not _compat.distributed.connected():
        return
    try:
        announced = _arrivals(0)
    except jax.errors.JaxRuntimeError:  # The service may be gone.
        return
    everyone = range(_compat.distributed.process_count())
    others = [p for p in everyone if announced.get(p, {"replaces": False})["replaces"] != replaces]
    if not others:
        return
    mine, theirs = [_compat.distributed.process_id()], others
    sides = (mine, theirs) if replaces else (theirs, mine)
    with_it, without = (_text.numbered("process", side) for side in sides)
    raise errors.MismatchError(
        f"{variables.REPLACE_COLLECTIVES} is set in {with_it} and not in {without}: some would"
        " communicate through the pool, and others with XLA's collectives. Set it in all processes,"
        " or in none, and install jax_cxl for all"
    )


def give_up(reason: str) -> None:
    """Makes `wait_for` raise errors from now on. `reason` says how this program ends."""
    global _ends
    _ends = reason


def wait_for(look: Callable[[], _T | None], timeout: float, problem: Callable[[], str]) -> _T:
    """Calls `look` until it returns something other than None, and returns that.

    Raises:
      NotInitializedError: another process has ended or failed, or this program ends (`give_up`).
        After `timeout` seconds, `problem` gives the text of the error.
    """
    deadline = time.monotonic() + timeout
    # The first waits are short, because the other processes usually come within milliseconds.
    pauses = itertools.chain((0.001, 0.002, 0.004, 0.008, 0.016), itertools.repeat(_LONGEST_PAUSE))
    while True:
        if _ends is not None:
            raise errors.NotInitializedError(f"its program ended before that ({_ends})")
        # Each look is a call of the coordination service. Usually the first one finds the value.
        if (found := look()) is not None:
            return found
        try:
            check_others()
        except errors.NotInitializedError:
            # The failed process may have written the awaited value first, for example the reason
            # why there is no pool.
            if (found := look()) is None:
                raise
            return found
        if time.monotonic() > deadline:
            raise errors.NotInitializedError(problem())
        time.sleep(next(pauses))


def wait_for_value(key: str, problem: str) -> str:
    """Waits until a key has a value, and returns it. Raises the errors of `wait_for`."""
    # The service answers as soon as there is a value, sooner than a pause would end.
    pause = round(_LONGEST_PAUSE * 1000)
    return wait_for(
        lambda: _compat.distributed.key_value(key, pause), TIMEOUT_SECONDS, lambda: problem
    )


@contextlib.contextmanager
def telling_failures(begins: bool = False) -> Any:
    """Tells the other processes of an exception in the body of the `with` statement.

    `begins`: the process has not called `begin` yet, so this function has to count the attempt.
    """
    global _attempt
    try:
        yield
    except Exception as error:
        _attempt += begins
        if _compat.distributed.connected():
            _post(_attempt, f"{type(error).__name__}: {error}", errors.code_of(error))
        raise


def _post(attempt: int, failure: str | None, code: str | None = None, **others: Any) -> None:
    who: dict[str, Any] = {"pid": os.getpid(), "start": process_identity.start_of(os.getpid())}
    who |= {"host": socket.gethostname(), "boot_id": process_identity.boot_id()}
    who |= {"pid_namespace": process_identity.pid_namespace(), "failure": failure, "code": code}
    who |= {"versions": _versions(), "processes": _compat.distributed.process_count()}
    who |= others
    _compat.distributed.post(_folder(attempt), json.dumps(who))


def _versions() -> str:
    try:
        ours = importlib.metadata.version("jax_cxl")
    except importlib.metadata.PackageNotFoundError:
        ours = "of a folder of sources"
    return f"jax_cxl {ours}, jax {jax.__version__}, jaxlib {jaxlib.version.__version__}"


def _check_counts() -> None:
    """Raises if a process that has arrived was told another number of processes."""
    own, count = _compat.distributed.process_id(), _compat.distributed.process_count()
    for process, who in sorted(_arrivals(_attempt).items()):
        if who.get("processes", count) != count:
            raise errors.NotInitializedError(
                f"process {own} was started as one of {count} processes, and process {process} (pid"
                f" {who['pid']} on host {who['host']}) as one of {who['processes']}: pass the same"
                " num_processes to jax.distributed.initialize in all processes, or start all of"
                " them by one launcher"
            )


def _check_versions() -> None:
    """Raises if the processes run different versions of jax_cxl, JAX or jaxlib.

    Such processes compile different programs from the same source.
    """
    by_versions: dict[str, list[int]] = {}
    for process, who in sorted(_arrivals(_attempt).items()):
        by_versions.setdefault(who["versions"], []).append(process)
    if len(by_versions) > 1:
        found = "; ".join(
            f"{_text.numbered('process', who)}: {text}" for text, who in by_versions.items()
        )
        raise errors.NotInitializedError(
            f"the processes run different versions ({found}). Install the same versions for all"
        )


def _check_settings(mine: dict[str, Any]) -> None:
    own = _compat.distributed.process_id()
    for process, who in sorted(_arrivals(_attempt).items()):
        theirs = who.get("settings", mine)
        differences = ", ".join(
            f"{name} is {value} here and {theirs[name]} on process {process}"
            for name, value in mine.items()
            if theirs[name] != value
        )
        if differences:
            raise errors.MismatchError(
                f"process {own} has other settings than process {process}: {differences}. Set the"
                " same values, and the same table (JAX_CXL_TUNING), in all processes."
            )


def _arrivals(attempt: int) -> dict[int, dict[str, Any]]:
    entries = _compat.distributed.entries(_folder(attempt))
    return {int(process): json.loads(text) for process, text in entries.items()}


def _folder(attempt: int) -> str:
    return f"jax_cxl/arrival/{attempt}"


def check_others() -> None:
    """Raises if a process that was expected to meet this one has ended or failed.

    The error of a process that has failed has the class of the process's own error.
    """
    if not _compat.distributed.connected():
        return
    _check_counts()
    # A process may have died before it arrived in this attempt. Its entry of the previous attempt
    # identifies the process.
    before = {p: who | {"failure": None} for p, who in _arrivals(_attempt - 1).items()}
    for process, who in sorted((before | _arrivals(_attempt)).items()):
        if process == _compat.distributed.process_id() or process not in _expected:
            continue
        here = process_identity.pid_means_the_same(who)
        ended = here and process_identity.start_of(who["pid"]) != who["start"]
        if ended:
            # The process may have written its reason after we read its entry, so read the entry
            # again.
            who = _arrivals(_attempt).get(process, who)
        name = f"process {process} (pid {who['pid']} on host {who['host']})"
        if who["failure"] is not None:
            reason = _text.clause(who["failure"].removesuffix(_ADVICE))
            raise errors.from_code(
                who["code"] or "FAILED_PRECONDITION",
                f"{name} could not start jax_cxl: {reason}.{_ADVICE}",
            )
        if ended:
            raise errors.NotInitializedError(
                f"{name} ended before jax_cxl had started: look at what it printed last.{_ADVICE}"
            )


@atexit.register
def _tell_of_end() -> None:
    """Tells the others if this program ends before it has tried to initialize."""
    global _attempt
    if _attempt == 0 and _compat.distributed.connected():
        _attempt = 1
        why = program_ending.reason() or "it ended normally"
        _post(1, f"its program ended before it called jax_cxl.initialize() ({why})")
