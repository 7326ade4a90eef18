"""Start-up: which ranks there are, which pool they share, and the handlers that use it.

A *rank* is a device; the *world* is `jax.devices()`, in this order. Process 0
creates the pool and tells the others through JAX's coordination service where
it is; once all have mapped it, its name is removed, so that nothing is left
behind however the job ends. After an error the ranks that are left may go on in
another pool (_regroup.py).
"""

import atexit
import dataclasses
import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import jax

from jax_cxl import (
    _compat,
    _config,
    _core,
    _failures,
    _platform,
    _pools,
    _programs,
    _rejoin,
    _tuning,
    errors,
)
from jax_cxl._launch import environment as launch_environment

# Set by launchers that do not tell JAX how to start: more than one process, and
# no jax.distributed, can only be a mistake.
_PROCESS_COUNTS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@dataclasses.dataclass(frozen=True)
class Stats:
    """What this process's ranks have communicated since `initialize`.

    Attributes:
      calls: number of collectives.
      bytes_published: bytes written to the pool.
      bytes_retrieved: bytes read from the pool.
      seconds: time in which a rank had at least one collective under way, summed over this
        process's ranks. Includes waiting for the other ranks.
    """

    calls: int
    bytes_published: int
    bytes_retrieved: int
    seconds: float


@dataclasses.dataclass
class Runtime:
    """A running job.

    Attributes:
      rank_of_device: global id of a JAX device -> its rank, of those that communicate.
      platform: that of the devices.
      pool_bytes: size of the pool.
      uri: the pool's URI as given, None for the default.
      tuning: what all processes agreed on.
      generation: how often the job has gone on after an error.
      attempt: the next attempt to regroup (_regroup.py).
    """

    rank_of_device: dict[int, int]
    platform: _platform.Platform
    pool_bytes: int
    uri: str | None
    tuning: _core.Tuning
    generation: int
    attempt: int = 1


# Held by whatever starts or stops the runtime.
lock = threading.Lock()
_running: Runtime | None = None


@dataclasses.dataclass
class _Past:
    """What `initialize` goes by, after `shutdown` too.

    All but `lost` is equal in all processes that meet: they initialize and regroup equally often.

    Attributes:
      generation: that of the last runtime, -1: there was none.
      starts: how often a runtime of this generation was started, or tried to.
      members: the ranks that have gone on; None: all.
      lost: ranks whose processes were gone at the last shutdown.
    """

    generation: int = -1
    starts: int = 0
    members: Sequence[int] | None = None
    lost: Sequence[int] = ()


_past = _Past()


def initialize(pool: str | None = None) -> None:
    """Starts jax_cxl: maps the shared pool and makes every local device a rank.

    Every process of the job has to call it, or to lower a collective, which calls it with the
    defaults; calling it again with the same pool does nothing. Under
    `python -m jax_cxl.launch`, Slurm or Open MPI it initializes `jax.distributed` too, unless
    the script has done so. It creates JAX's backend.

    Args:
      pool: URI of the pool, by default that of the environment variable `JAX_CXL_POOL`, else
        `shm:` with 32 MiB for each CPU device, or 192 MiB for each GPU:

        * `shm:NAME?size=1GiB` - a file in /dev/shm;
        * `file:/path` - a file that all processes can map;
        * `dax:/dev/dax0.0,/dev/dax1.0?offset=2MiB` - CXL memory, one path a device.

        For `shm:` and `file:`, `devices=6` splits the file into six equal pool devices.

    Raises:
      PoolError: the pool cannot be used (too small, missing, forbidden, in use, not ours); all
        processes raise it.
      ValueError: the URI is malformed, or the table that `JAX_CXL_TUNING` names.
      MismatchError: the processes have different tables.
      NotInitializedError: jax_cxl runs on another pool already, or there are several processes
        that know nothing of each other.

    Example:
      >>> jax_cxl.initialize("shm:?size=256MiB")
    """
    global _running
    config = _config.from_environment()
    uri = pool if pool is not None else config.pool
    with lock:
        if _running is not None:
            if uri == _running.uri:
                return
            raise errors.NotInitializedError(
                f"jax_cxl already runs on the pool {_running.uri or 'shm:'}; call"
                " jax_cxl.shutdown() before initializing it with another one."
            )
        _initialize_distributed()
        _running = _start(uri, config)


def shutdown() -> None:
    """Stops jax_cxl and lets go of the pool. Collectives that are under way fail.

    Runs by itself when the process exits. Programs that were compiled before can run again
    after another `initialize` with the same devices. After `regroup`, these are the devices that
    went on.
    """
    _shutdown("")


def _shutdown(reason: str) -> None:
    global _running
    with lock:
        if _running is not None:
            if _running.platform is _platform.CUDA:
                _running.platform.load().stop()
            _past.lost = [
                rank for rank in _running.rank_of_device.values() if _core.rank_lost(rank)
            ]
            _core.stop(reason)
            _running = None


def _at_exit() -> None:
    """Shuts down; tells the other ranks if it is an exception that ends the program."""
    # 3.11 has the last three of exc_info, 3.12 on the exception too.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    _shutdown("" if error is None else f"{type(error).__name__}: {error}")


def ensure_started() -> Runtime:
    """Returns the running job, after starting it with the defaults if need be."""
    if _running is None:
        initialize()
    assert _running is not None
    return _running


def current() -> Runtime | None:
    """Returns the running job, None if there is none."""
    return _running


def restart(meeting: _pools.Meeting, uri: str | None) -> None:
    """Goes on in another pool, with `lock` held.

    Args:
      meeting: those that go on, this process among them.
      uri: the pool's URI.
    """
    global _running
    assert _running is not None
    tuning, _running = _running.tuning, None
    _core.stop("")
    _running = _run(meeting, uri, _config.from_environment(), tuning)


def stats() -> Stats:
    """Returns what this process's ranks have communicated so far.

    Example:
      >>> before = jax_cxl.stats()
      >>> step(x).block_until_ready()
      >>> jax_cxl.stats().bytes_published - before.bytes_published
      4096
    """
    running = _running
    module = _core if running is None else running.platform.load()
    return Stats(**module.stats())


def _initialize_distributed() -> None:
    """Connects the processes of the job, if there are several and the script did not."""
    if not jax.distributed.is_initialized():
        _connect()
    if launch_environment.succeeds_process_0():
        _compat.forget_topology()


def _connect() -> None:
    from jax_cxl.launch import launched

    several = [name for name in _PROCESS_COUNTS if int(os.environ.get(name, "1")) > 1]
    if not launched() and not several:
        return
    try:
        jax.distributed.initialize()
    except (RuntimeError, ValueError) as error:
        raise errors.NotInitializedError(
            "This is one of several processes"
            + (f" ({several[0]}={os.environ[several[0]]})" if several else "")
            + ", but they do not know of each other, and jax.distributed could not be"
            f" initialized: {error}. Call jax.distributed.initialize(...) or"
            " jax_cxl.initialize() first thing in the script, before anything uses a device."
        ) from error


def _start(uri: str | None, config: _config.Config) -> Runtime:
    devices = jax.devices()
    platform = _platform.of(devices[0])
    handlers = platform.load()
    if platform is _platform.CPU and jax.process_count() > 1:
        _compile_alike()
    name = f"jax_cxl/{max(_past.generation, 0)}.{_past.starts}"
    tuning = _tuning.load(config.tuning)
    meeting = _come_together(name, uri, platform, tuning)
    _register_handlers(platform)
    if config.fault is not None:
        _core.arm_fault(config.fault)
    running = _run(meeting, uri, config, tuning)
    if platform is _platform.CUDA:
        from jax_cxl import _cuda_start

        try:
            ordinals = [platform.ordinal(devices[rank]) for rank in _pools.local_ranks()]
            _cuda_start.start(handlers, ordinals, config, name)
        except Exception as error:
            _core.stop(str(error))
            raise
    return running


def _run(
    meeting: _pools.Meeting, uri: str | None, config: _config.Config, tuning: _core.Tuning
) -> Runtime:
    """Starts the engine for this process's ranks among those that have met."""
    devices = jax.devices()
    platform = _platform.of(devices[0])
    pool_bytes = meeting.pool.total_bytes
    if jax.process_index() == devices[meeting.members[0]].process_index:
        launch_environment.announce_pool(*meeting.pool.opened_file())
    _core.start(
        meeting.pool,
        [
            (platform.ordinal(devices[rank]), rank)
            for rank in _pools.local_ranks()
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
    return Runtime(rank_of_device, platform, pool_bytes, uri, tuning, meeting.generation)


def _come_together(
    name: str, uri: str | None, platform: _platform.Platform, tuning: _core.Tuning
) -> _pools.Meeting:
    """Meets the other processes that are left."""
    _check_lost()
    _past.starts += 1
    before = _past.generation
    devices = jax.devices()
    everyone = range(len(devices))
    members = everyone if _past.members is None else _past.members
    processes = sorted({devices[rank].process_index for rank in members})
    # Among the others may then be successors, who count meetings from 0.
    by_tickets = launch_environment.goes_on() and _past.members is None
    if len(processes) > 1:
        agreement = "jax_cxl" if by_tickets else name
        _tuning.agree(tuning, agreement, jax.process_index(), processes[0])
    if by_tickets:
        meeting = _rejoin.join(uri, platform, before)
    else:
        pool = _meet(name, uri, platform, processes)
        meeting = _pools.Meeting(pool, members, max(before, 0))
    if 0 <= before < meeting.generation:
        jax.clear_caches()  # Programs from before must not communicate any more.
    return meeting


def _remember(meeting: _pools.Meeting) -> None:
    """Notes who has met, for the next `initialize`."""
    global _past
    if meeting.generation != max(_past.generation, 0):
        _past = _Past(starts=1)
    _past.generation = meeting.generation
    everyone = len(meeting.members) == jax.device_count()
    _past.members = None if everyone else list(meeting.members)


def _check_lost() -> None:
    """Raises where a rank that has to come cannot."""
    successors = launch_environment.restarts_lost() and _past.members is None
    if not _past.lost or successors:
        return
    ranks = ", ".join(map(str, _past.lost))
    who = f"rank {ranks} was" if len(_past.lost) == 1 else f"ranks {ranks} were"
    raise errors.NotInitializedError(
        f"{who} lost before jax_cxl.shutdown(), and jax_cxl.initialize() waits for all that"
        " communicated. To go on without the lost, call jax_cxl.regroup() before"
        " jax_cxl.shutdown(); now all processes have to start again."
    )


def _compile_alike() -> None:
    """Keeps ranks from running what XLA takes for different programs.

    XLA's launch ids, by which ranks match their calls, differ between a program that was
    compiled and the same program from the persistent cache; JAX does not make processes agree
    which of the two they run. They also differ between programs that are called from different
    lines, as long as lines are in the program. (Within one process there is nothing to agree on.)
    """
    settings: Any = jax.config  # Options are attributes that type checkers do not know.
    if settings.jax_enable_compilation_cache and settings.jax_compilation_cache_dir:
        logging.getLogger("jax_cxl").warning(
            "JAX's persistent compilation cache is off: with several processes, some of them"
            " could load a program that others compile, and their collectives would not match."
        )
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_traceback_in_locations_limit", 0)


def _meet(
    name: str, uri: str | None, platform: _platform.Platform, processes: Sequence[int]
) -> _core.Pool:
    """Maps the pool in these processes; returns once every rank of theirs has registered in it."""
    client = _compat.coordination_client() if len(processes) > 1 else None
    first = jax.process_index() == processes[0]
    try:
        if first:
            pool, place = _pools.create(uri, platform)
            if client is not None:
                client.key_value_set(f"{name}/pool", json.dumps(place))
        else:
            assert client is not None
            place = json.loads(
                client.blocking_key_value_get(f"{name}/pool", _compat.MEETING_TIMEOUT_MS)
            )
            pool = _pools.attach(place)
    except Exception as error:
        if client is not None and first:
            # The others would wait for the pool: let them fail for the same reason.
            client.key_value_set(f"{name}/pool", json.dumps(_pools.no_place(error)))
        raise
    _pools.register(pool, _pools.local_ranks())
    if client is not None:
        client.wait_at_barrier(f"{name}/registered", _compat.MEETING_TIMEOUT_MS, list(processes))
    if first:
        _pools.remove_name(pool, place, uri)
    return pool


_registered: set[str] = set()


def _register_handlers(platform: _platform.Platform) -> None:
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
    _programs.listen()
    _failures.install()
    atexit.register(_at_exit)
