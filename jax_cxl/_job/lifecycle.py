"""Start and stop of the runtime: ranks, the pool that they share, and the XLA handlers.

A *rank* is a device; the *world* is `jax.devices()`, in this order. The processes meet
(meetings.py) and share a pool without a name, so that no file remains, however the job ends.
After an error the surviving ranks may continue in another pool (regroup.py).
"""

import atexit
import dataclasses
import functools
import threading
from collections.abc import Mapping

import jax

from jax_cxl import _core, errors
from jax_cxl._job import (
    configuration,
    information,
    lateness,
    lowered_programs,
    platforms,
    setting,
    stacks,
    start_gpus,
    tuning_table,
    variables,
)
from jax_cxl._job.ending import ending, program_ending, program_errors
from jax_cxl._job.launched import environment as launch_environment
from jax_cxl._job.meeting import arrival, connection, meetings
from jax_cxl._job.pool import pool_uri, pools


@dataclasses.dataclass(frozen=True)
class OperationStats:
    """Statistics of one operation, summed over the ranks of this process, since `initialize`.

    Attributes:
      calls: number of calls.
      bytes: bytes of the operands.
      seconds_waited: seconds in which a call waited until all ranks had submitted it. An eager
        call, whose data travel in the submissions, consists only of this wait.
      seconds_worked: seconds from the moment when all ranks had submitted a call to its end.
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
      collectives_left: how many of them XLA executes itself, although they were supposed to run
        through the pool.
      operations: statistics of each operation, by the name of the function, such as "psum".
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
      tuning: the tuning table on which all processes agreed.
      generation: how many times the job has started again, or continued after an error.
      attempt: number of the next attempt to regroup (regroup.py).
    """

    rank_of_device: dict[int, int]
    platform: platforms.Platform
    pool_bytes: int
    spec: pool_uri.PoolSpec
    tuning: _core.Tuning
    generation: int
    attempt: int = 1


# A thread holds this lock while it starts or stops the runtime.
lock = threading.Lock()
_running: Runtime | None = None
# The statistics of the last runtime, once it has stopped.
_last_stats: Stats | None = None


def initialize(pool: str | None = None) -> None:
    """Starts jax_cxl: maps the shared pool and makes every local device a rank.

    Every process of the job has to call `initialize`, or to lower a collective, which calls it with
    the defaults. A second call with the same pool does nothing. Under `python -m jax_cxl.launch`,
    Slurm or Open MPI it initializes `jax.distributed` too, unless the script has done so. It
    creates JAX's backend.

    Args:
      pool: URI of the pool. The default is the environment variable `JAX_CXL_POOL`, or else `shm:`
        with 31 MiB for each CPU device, or 192 MiB for each GPU:

        * `shm:NAME?size=1GiB` - a file in /dev/shm;
        * `file:/path` - a file that all processes can map;
        * `dax:/dev/dax0.0,/dev/dax1.0?offset=2MiB` - CXL memory, one path a device.

        For `shm:` and `file:`, `devices=6` splits the file into six equal pool devices.

    Raises:
      PoolError: the pool cannot be used (too small, missing, forbidden, in use, or not a pool of
        this job). All processes raise it.
      InvalidPoolError: the URI is malformed.
      ValueError: a variable `JAX_CXL_...`, or the table that `JAX_CXL_TUNING` names, is malformed.
      MismatchError: the processes have different tuning tables.
      NotInitializedError: jax_cxl runs on another pool already, there are several processes that do
        not know of each other, or one of them ends, fails or does not arrive within
        `JAX_CXL_CONNECT_TIMEOUT` seconds.

    Example:
      >>> jax_cxl.initialize("shm:?size=256MiB")
    """
    global _running
    configuration.warn_of_unknown_variables()
    with arrival.telling_failures(begins=True):
        config = configuration.from_environment()
    uri = pool if pool is not None else config.pool
    with lock:
        if _running is not None:
            if pool_uri.parse(uri) == _running.spec:
                return
            raise errors.NotInitializedError(
                f"jax_cxl already runs on the pool {_running.spec.uri}; call"
                " jax_cxl.shutdown() before initializing it with another one."
            )
        connection.connect(config.connect_timeout)
        with arrival.telling_failures(begins=True):
            meetings.check_lost()
            tuning = tuning_table.load(config.tuning)
            early_bytes = setting.early_bytes()
        early = {variables.EARLY_BYTES: "off" if early_bytes is None else early_bytes}
        settings = tuning_table.table(tuning) | early
        arrival.begin(meetings.processes_left(), config.connect_timeout, settings)
        with arrival.telling_failures():
            _running = _start(pool_uri.parse(uri), config, tuning)


def shutdown() -> None:
    """Stops jax_cxl and unmaps the pool. Collectives that are under way fail.

    jax_cxl calls it when the process exits. After another `initialize`, programs can run again. If
    there are several processes, they are compiled again, and a program that was compiled ahead of
    time raises `NotInitializedError`.
    """
    _shutdown("", program_ends=False)


def _shutdown(reason: str, program_ends: bool) -> None:
    global _running, _last_stats
    with lock:
        if _running is not None:
            _last_stats = _stats(_running)
            if _running.platform is platforms.CUDA:
                _running.platform.load().stop()
            lateness.stop_watching()
            ranks = _running.rank_of_device.values()
            meetings.note_end([rank for rank in ranks if _core.rank_lost(rank)])
            _core.stop(reason, program_ends)
            _running = None


def _at_exit() -> None:
    """Shuts down. If the program fails, tells the other ranks."""
    reason = program_ending.reason()
    if _running is not None:
        if not reason and not _core.failed():
            ending.finish_programs()
        ending.wait_for_survivors()
    _shutdown(reason, program_ends=True)
    if meetings.somebody_was_lost():
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


def restart(meeting: pools.Meeting, spec: pool_uri.PoolSpec) -> None:
    """Restarts the runtime in the pool of `meeting`.

    Ranks of this process are members of the meeting. The caller holds `lock`.
    """
    global _running
    assert _running is not None
    tuning, _running = _running.tuning, None
    lateness.stop_watching()
    _core.stop("", program_ends=False)
    _running = _run(meeting, spec, configuration.from_environment(), tuning)


def stats() -> Stats:
    """Returns statistics of the calls of this process's ranks so far.

    After `shutdown`, and in a program's own exit handlers, they cover the whole run.

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
    return _last_stats if running is None and _last_stats is not None else _stats(running)


def _stats(running: Runtime | None) -> Stats:
    module = _core if running is None else running.platform.load()
    return Stats(
        **module.stats(),
        collectives_taken=lowered_programs.taken.total(),
        collectives_left=lowered_programs.left.total(),
        operations={each.pop("name"): OperationStats(**each) for each in _core.operations()},
    )


def _start(spec: pool_uri.PoolSpec, config: configuration.Config, tuning: _core.Tuning) -> Runtime:
    devices = jax.devices()
    platform = platforms.of(devices[0])
    handlers = platform.load()
    meeting = meetings.come_together(spec, platform)
    register_handlers(platform)
    running = _run(meeting, spec, config, tuning)
    if platform is platforms.CUDA:
        try:
            ordinals = [platform.ordinal(devices[rank]) for rank in pools.local_ranks()]
            start_gpus.start(handlers, ordinals, config, tuning, spec.gpu_writes_memory)
        except Exception as error:
            handlers.stop()
            lateness.stop_watching()
            _core.stop(str(error), program_ends=False)
            raise
    return running


def _run(
    meeting: pools.Meeting,
    spec: pool_uri.PoolSpec,
    config: configuration.Config,
    tuning: _core.Tuning,
) -> Runtime:
    """Starts the engine for those ranks of this process that are members of `meeting`."""
    devices = jax.devices()
    platform = platforms.of(devices[0])
    local = [rank for rank in pools.local_ranks() if rank in meeting.members]
    pool_bytes = meeting.pool.total_bytes
    is_first = jax.process_index() == devices[meeting.members[0]].process_index
    opened_file = meeting.pool.opened_file()
    if is_first:
        launch_environment.announce_pool(*opened_file)
    _core.start(
        meeting.pool,
        [(platform.ordinal(devices[rank]), rank) for rank in local],
        absent=[rank for rank in range(len(devices)) if rank not in meeting.members],
        generation=meeting.generation,
        slot_bytes=config.slot_bytes,
        num_slots=config.num_slots,
        tuning=tuning,
        warn_after=config.warn_after,
        timeout=config.timeout,
        heartbeat_timeout=config.heartbeat_timeout,
    )
    if is_first and len(meeting.members) > 1:
        lateness.watch(opened_file, meeting.members)
    meetings.remember(meeting)
    rank_of_device = {devices[rank].id: rank for rank in meeting.members}
    running = Runtime(rank_of_device, platform, pool_bytes, spec, tuning, meeting.generation)
    stacks.offer()
    if config.log == "info":
        information.begin()
        information.started(running, config)
    return running


_registered: set[str] = set()


def register_handlers(platform: platforms.Platform) -> None:
    if platform.name in _registered:
        return
    _registered.add(platform.name)
    handlers, target = platform.load(), platform.target_name
    # The import of jax_cxl must not make these registrations. If registrations are made before the
    # backend exists, JAX replays them in an order that fails: types after the handlers that use
    # them.
    for name, registration in handlers.type_registrations().items():
        jax.ffi.register_ffi_type(name, registration, platform=target)
    for name, stages in handlers.registrations().items():
        jax.ffi.register_ffi_target(name, stages, platform=target)
    lowered_programs.install()
    program_errors.install()
    prepare_end()


@functools.cache
def prepare_end() -> None:
    """Makes the program shut down jax_cxl at its end, even if the runtime starts later."""
    program_ending.watch()
    atexit.register(_at_exit)
