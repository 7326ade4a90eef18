"""Start and stop of the runtime: ranks, the pool that they share, and the XLA handlers.

A *rank* is a device; the *world* is `jax.devices()`, in this order. Process 0
creates the pool and tells the others through JAX's coordination service where
it is. Once all processes have mapped it, its name is removed, so that nothing is
left behind however the job ends. After an error the surviving ranks may continue
in another pool (regroup.py).
"""

import atexit
import dataclasses
import json
import os
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jax_cxl import _compat, _core, errors
from jax_cxl._launch import environment as launch_environment
from jax_cxl._primitives import lowered_programs
from jax_cxl._runtime import (
    alone,
    arrival,
    configuration,
    ending,
    platforms,
    pools,
    program_ending,
    program_errors,
    start_gpus,
    successor_tickets,
    tuning_table,
)
from jax_cxl._takeover import counts as takeover_counts

# Files that jax.distributed and jax_cxl open, besides one for each other process.
_FILES = 24


@dataclasses.dataclass(frozen=True)
class OperationStats:
    """Statistics of one operation, summed over the ranks of this process, since `initialize`.

    Attributes:
      calls: number of calls.
      bytes: bytes of the operands.
      seconds_waited: seconds in which a call waited for other ranks to come to it. Short calls,
        whose data come with the ranks, only wait.
      seconds_worked: seconds from the time when all ranks had come to the end of the call.
      failed: number of calls that ended with an error.
    """

    calls: int
    bytes: int
    seconds_waited: float
    seconds_worked: float
    failed: int


@dataclasses.dataclass(frozen=True)
class Stats:
    """Statistics of the calls of this process's ranks since `initialize`.

    Attributes:
      calls: number of collectives.
      bytes_published: bytes written to the pool.
      bytes_retrieved: bytes read from the pool.
      seconds: seconds in which a rank had at least one collective under way, summed over the
        ranks of this process. Waiting for other ranks is included.
      collectives_taken: how many of XLA's collectives, in the programs that this process has
        compiled, run through the pool (`replace_collectives`).
      collectives_left: how many of them stayed XLA's although they were to run through the pool.
      operations: what was counted of each operation, by the name of the function, such as "psum".
    """

    calls: int
    bytes_published: int
    bytes_retrieved: int
    seconds: float
    collectives_taken: int
    collectives_left: int
    operations: Mapping[str, OperationStats]


@dataclasses.dataclass
class Runtime:
    """A running job.

    Attributes:
      rank_of_device: rank of each JAX device that communicates, by the device's global id.
      platform: the platform of the devices.
      pool_bytes: size of the pool.
      uri: the pool's URI as given, None for the default.
      tuning: the tuning table on which all processes agreed.
      generation: how many times the job has continued after an error.
      attempt: number of the next attempt to regroup (regroup.py).
    """

    rank_of_device: dict[int, int]
    platform: platforms.Platform
    pool_bytes: int
    uri: str | None
    tuning: _core.Tuning
    generation: int
    attempt: int = 1


# Held while a thread starts or stops the runtime.
lock = threading.Lock()
_running: Runtime | None = None


@dataclasses.dataclass
class _Past:
    """What the next `initialize` has to know of earlier runtimes, also after `shutdown`.

    All attributes but `lost` are equal in all processes that meet, because these call `initialize`
    and `regroup` equally often.

    Attributes:
      generation: generation of the last runtime; -1 if there was none.
      starts: how often this process has tried to start a runtime of this generation.
      members: the ranks that have continued after an error; None for all.
      lost: ranks whose processes were gone at the last shutdown.
      failed: whether a rank of this process had given up then.
    """

    generation: int = -1
    starts: int = 0
    members: Sequence[int] | None = None
    lost: Sequence[int] = ()
    failed: bool = False


_past = _Past()


def initialize(pool: str | None = None) -> None:
    """Starts jax_cxl: maps the shared pool and makes every local device a rank.

    Every process of the job has to call `initialize`, or to lower a collective, which calls it with
    the defaults. A second call with the same pool does nothing. Under `python -m jax_cxl.launch`,
    Slurm or Open MPI it initializes `jax.distributed` too, unless the script has done so. It
    creates JAX's backend.

    Args:
      pool: URI of the pool. The default is the environment variable `JAX_CXL_POOL`, or else `shm:`
        with 32 MiB for each CPU device, or 192 MiB for each GPU:

        * `shm:NAME?size=1GiB` - a file in /dev/shm;
        * `file:/path` - a file that all processes can map;
        * `dax:/dev/dax0.0,/dev/dax1.0?offset=2MiB` - CXL memory, one path a device.

        For `shm:` and `file:`, `devices=6` splits the file into six equal pool devices.

    Raises:
      PoolError: the pool cannot be used (too small, missing, forbidden, in use, or not a pool of
        this job). All processes raise it.
      InvalidPoolError: the URI is malformed.
      ValueError: the table that `JAX_CXL_TUNING` names is malformed, or a variable `JAX_CXL_...`.
      MismatchError: the processes have different tuning tables.
      NotInitializedError: jax_cxl runs on another pool already, there are several processes that
        do not know of each other, or one of them ends, fails or does not come within
        `JAX_CXL_CONNECT_TIMEOUT` seconds.

    Example:
      >>> jax_cxl.initialize("shm:?size=256MiB")
    """
    global _running
    with arrival.telling_failures(begins=True):
        config = configuration.from_environment()
    uri = pool if pool is not None else config.pool
    with lock:
        if _running is not None:
            if uri == _running.uri:
                return
            raise errors.NotInitializedError(
                f"jax_cxl already runs on the pool {_running.uri or 'shm:'}; call"
                " jax_cxl.shutdown() before initializing it with another one."
            )
        _initialize_distributed(config.connect_timeout)
        with arrival.telling_failures(begins=True):
            _check_lost()
        arrival.begin(_processes_left(), config.connect_timeout)
        with arrival.telling_failures():
            _running = _start(uri, config)


def shutdown() -> None:
    """Stops jax_cxl and unmaps the pool. Collectives that are under way fail.

    jax_cxl calls it when the process exits. Programs that were compiled before can run again after
    another `initialize` with the same devices. After a `regroup`, these are the devices that
    `regroup` returned.
    """
    _shutdown("", program_ends=False)


def _shutdown(reason: str, program_ends: bool) -> None:
    global _running
    with lock:
        if _running is not None:
            if _running.platform is platforms.CUDA:
                _running.platform.load().stop()
            _past.lost = [
                rank for rank in _running.rank_of_device.values() if _core.rank_lost(rank)
            ]
            _past.failed = _core.failed()
            _core.stop(reason, program_ends)
            _running = None


def _at_exit() -> None:
    """Shuts down; tells the other ranks if the program fails."""
    if _running is not None:
        ending.wait_for_survivors()
    _shutdown(program_ending.reason(), program_ends=True)
    if _past.lost or _past.members is not None:
        ending.leave_jax()


def ensure_started() -> Runtime:
    """Returns the running job. Starts it with the defaults if there is none."""
    if _running is None:
        initialize()
    assert _running is not None
    return _running


def current() -> Runtime | None:
    """Returns the running job, None if there is none."""
    return _running


def restart(meeting: pools.Meeting, uri: str | None) -> None:
    """Continues in another pool, with `lock` held.

    Args:
      meeting: the ranks that continue, some of this process among them, and their pool.
      uri: the pool's URI.
    """
    global _running
    assert _running is not None
    tuning, _running = _running.tuning, None
    _core.stop("", program_ends=False)
    _running = _run(meeting, uri, configuration.from_environment(), tuning)


def stats() -> Stats:
    """Returns statistics of the calls of this process's ranks so far.

    Example:
      >>> before = jax_cxl.stats()
      >>> step(x).block_until_ready()
      >>> after = jax_cxl.stats()
      >>> after.bytes_published - before.bytes_published
      4096
      >>> after.operations["psum"].seconds_waited  # for ranks that were later than this one
      0.0021
    """
    running = _running
    module = _core if running is None else running.platform.load()
    return Stats(
        **module.stats(),
        collectives_taken=takeover_counts.counts.taken.total(),
        collectives_left=takeover_counts.counts.left.total(),
        operations={each.pop("name"): OperationStats(**each) for each in _core.operations()},
    )


def _processes_left() -> Sequence[int] | None:
    """Returns the processes that have gone on after an error, None for all."""
    if _past.members is None:
        return None
    return sorted({jax.devices()[rank].process_index for rank in _past.members})


def _initialize_distributed(connect_timeout: float) -> None:
    """Connects the processes of the job if there are several, unless the script has done so."""
    if not jax.distributed.is_initialized():
        _connect(connect_timeout)
    if launch_environment.succeeds_process_0():
        _compat.forget_topology()


def _check_open_files(more: int) -> None:
    """Raises where this process may not open so many more files.

    Libraries that cannot open one say all sorts of things, such as "random_device not available".
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = limit - len(os.listdir("/proc/self/fd"))
    if left < more:
        raise errors.NotInitializedError(
            f"this process can open {left} more files, of {limit}, and jax_cxl needs {more} between"
            " several processes: raise the limit (ulimit -n)"
        )


def _connect(connect_timeout: float) -> None:
    several = alone.told_by()
    if not launch_environment.launched() and not several:
        return
    _check_open_files(_FILES)
    if not _compat.has_backend():
        arrival.await_ranks(connect_timeout)
    try:
        jax.distributed.initialize()
    except (RuntimeError, ValueError) as error:
        raise errors.NotInitializedError(
            "This is one of several processes"
            + (f" ({several})" if several else "")
            + ", but they do not know of each other, and jax.distributed could not be"
            f" initialized: {error}. Call jax.distributed.initialize(...) or"
            " jax_cxl.initialize() at the beginning of the script, before anything uses a device."
        ) from error


def _start(uri: str | None, config: configuration.Config) -> Runtime:
    devices = jax.devices()
    platform = platforms.of(devices[0])
    handlers = platform.load()
    name = f"jax_cxl/{max(_past.generation, 0)}.{_past.starts}"
    tuning = tuning_table.load(config.tuning)
    meeting = _come_together(name, uri, platform, tuning)
    _register_handlers(platform)
    running = _run(meeting, uri, config, tuning)
    if platform is platforms.CUDA:
        try:
            ordinals = [platform.ordinal(devices[rank]) for rank in pools.local_ranks()]
            start_gpus.start(handlers, ordinals, config, name)
        except Exception as error:
            _core.stop(str(error), program_ends=False)
            raise
    return running


def _run(
    meeting: pools.Meeting, uri: str | None, config: configuration.Config, tuning: _core.Tuning
) -> Runtime:
    """Starts the engine for those ranks of this process that continue."""
    devices = jax.devices()
    platform = platforms.of(devices[0])
    pool_bytes = meeting.pool.total_bytes
    if jax.process_index() == devices[meeting.members[0]].process_index:
        launch_environment.announce_pool(*meeting.pool.opened_file())
    _core.start(
        meeting.pool,
        [
            (platform.ordinal(devices[rank]), rank)
            for rank in pools.local_ranks()
            if rank in meeting.members
        ],
        absent=[rank for rank in range(len(devices)) if rank not in meeting.members],
        generation=meeting.generation,
        slot_bytes=config.slot_bytes,
        num_slots=config.num_slots,
        tuning=tuning,
        warn_after=config.warn_after,
        timeout=config.timeout,
        heartbeat_timeout=config.heartbeat_timeout,
    )
    _remember(meeting)
    rank_of_device = {devices[rank].id: rank for rank in meeting.members}
    running = Runtime(rank_of_device, platform, pool_bytes, uri, tuning, meeting.generation)
    if config.log:
        from jax_cxl._runtime import information  # It needs this module.

        information.begin()
        information.started(running, config)
    return running


def _come_together(
    name: str, uri: str | None, platform: platforms.Platform, tuning: _core.Tuning
) -> pools.Meeting:
    """Meets the other surviving processes."""
    _past.starts += 1
    before = _past.generation
    devices = jax.devices()
    everyone = range(len(devices))
    members = everyone if _past.members is None else _past.members
    processes = sorted({devices[rank].process_index for rank in members})
    # Successors of lost processes may be among the others. They count meetings from 0.
    by_tickets = launch_environment.restarts_lost() and _past.members is None
    if len(processes) > 1:
        _check_open_files(len(processes))
        agreement = "jax_cxl" if by_tickets else name
        tuning_table.agree(tuning, agreement, jax.process_index(), processes[0])
    if by_tickets:
        meeting = successor_tickets.join(uri, platform, before, _past.failed)
    else:
        generation = max(before, 0)
        if before >= 0 and len(processes) > 1:
            generation += _any_failed(name, processes)
        pool = _meet(name, uri, platform, processes)
        meeting = pools.Meeting(pool, members, generation)
    if 0 <= before < meeting.generation:
        jax.clear_caches()  # Programs that were compiled before must not communicate.
    return meeting


def _remember(meeting: pools.Meeting) -> None:
    """Remembers who has met, for the next `initialize`."""
    global _past
    if meeting.generation != max(_past.generation, 0):
        _past = _Past(starts=1)
    _past.generation = meeting.generation
    _past.failed = False
    everyone = len(meeting.members) == jax.device_count()
    _past.members = None if everyone else list(meeting.members)


def _any_failed(name: str, processes: Sequence[int]) -> bool:
    """Returns whether a rank of any process had given up when it shut down.

    They may then have launched their programs differently often, by which calls are matched:
    programs have to be made anew.
    """
    client = _compat.coordination_client()
    client.key_value_set(f"{name}/failed/{jax.process_index()}", str(int(_past.failed)))

    def told() -> list[str] | None:
        found = dict(client.key_value_dir_get(f"{name}/failed/"))
        return list(found.values()) if len(found) == len(processes) else None

    return "1" in _wait(told, "not all processes have called jax_cxl.initialize() again")


def _check_lost() -> None:
    """Raises if a rank that `initialize` would wait for is lost."""
    successors = launch_environment.restarts_lost() and _past.members is None
    if not _past.lost or successors:
        return
    ranks = ", ".join(map(str, _past.lost))
    who = f"rank {ranks} was" if len(_past.lost) == 1 else f"ranks {ranks} were"
    raise errors.NotInitializedError(
        f"{who} lost before jax_cxl.shutdown(), and jax_cxl.initialize() waits for all ranks that"
        " communicated. To continue without lost ranks, call jax_cxl.regroup() before"
        " jax_cxl.shutdown(). Now all processes have to start again."
    )


def _meet(
    name: str, uri: str | None, platform: platforms.Platform, processes: Sequence[int]
) -> _core.Pool:
    """Maps the pool in these processes. Returns once all their ranks have registered in it."""
    client = _compat.coordination_client() if len(processes) > 1 else None
    first = jax.process_index() == processes[0]
    try:
        if first:
            pool, place = pools.create(uri, platform)
            if client is not None:
                client.key_value_set(f"{name}/pool", json.dumps(place))
        else:
            assert client is not None
            text = _wait(
                lambda: _compat.key_value(f"{name}/pool"),
                f"process {processes[0]} has not created the pool",
            )
            place = json.loads(text)
            pool = pools.attach(place)
    except Exception as error:
        if client is not None and first:
            # The others wait for the pool: let them fail for the same reason.
            client.key_value_set(f"{name}/pool", json.dumps(pools.no_place(error)))
        raise
    try:
        pools.register(pool, pools.local_ranks())
        if client is not None:
            client.key_value_set(f"{name}/registered/{jax.process_index()}", "")
            _wait(
                lambda: (
                    len(client.key_value_dir_get(f"{name}/registered/")) == len(processes) or None
                ),
                "not all processes have come to the pool",
            )
        pools.check_hosts(pool, _ranks_of(processes), place)
    except Exception:
        # The process that has created it may be gone.
        pools.remove_name(pool, place, uri)
        raise
    if first:
        pools.remove_name(pool, place, uri)
    return pool


def _ranks_of(processes: Sequence[int]) -> list[int]:
    return [rank for rank, device in enumerate(jax.devices()) if device.process_index in processes]


def _wait(look: Callable[[], Any], problem: str) -> Any:
    return arrival.wait_for(look, _compat.MEETING_TIMEOUT_MS / 1000, problem)


_registered: set[str] = set()


def _register_handlers(platform: platforms.Platform) -> None:
    if platform.name in _registered:
        return
    _registered.add(platform.name)
    handlers, target = platform.load(), platform.target_name
    # JAX replays registrations made before the backend exists in an order that
    # fails (types after the handlers that use them), so this is not done on import.
    for name, registration in handlers.type_registrations().items():
        jax.ffi.register_ffi_type(name, registration, platform=target)
    for name, stages in handlers.registrations().items():
        jax.ffi.register_ffi_target(name, stages, platform=target)
    lowered_programs.listen()
    program_errors.install()
    program_ending.watch()
    atexit.register(_at_exit)
