"""The settings of the runtime, and the environment variables that set them.

`variables.py` has the other variables.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

from jax_cxl import _text
from jax_cxl._job import variables

_PREFIX = "JAX_CXL_"
# The tests and benchmarks of a checkout read these, and all variables that begin with
# JAX_CXL_TEST_.
_OF_A_CHECKOUT = ("CI_PYTHONS", "GPU_COMPILER", "MPI", "PYTHON", "WHEEL")
# libnccl.so.2 reads these (cc/nccl/interface/settings.cc).
_OF_NCCL = (
    *("NCCL_COMMUNICATOR_BYTES", "NCCL_COMPARE", "NCCL_HOSTS", "NCCL_LIBRARY"),
    *("NCCL_POOL", "NCCL_RANK_BYTES"),
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of one process. All processes of a job should have the same settings.

    Attributes:
      pool: URI of the pool (`JAX_CXL_POOL`); None for a pool of automatic size in /dev/shm.
      timeout: seconds for which a rank waits for a living peer before the collective fails on all
        ranks (`JAX_CXL_TIMEOUT`).
      warn_after: seconds after which a waiting rank prints to stderr which rank it waits for
        (`JAX_CXL_WARN_AFTER`).
      connect_timeout: seconds for which `initialize` waits for the other processes to call it
        (`JAX_CXL_CONNECT_TIMEOUT`). Values above 100 s make a difference only while all processes
        live: JAX aborts a process 100 s after another one has died.
      heartbeat_timeout: seconds without a heartbeat after which a process of another host counts
        as dead (`JAX_CXL_HEARTBEAT_TIMEOUT`). The end of a process of this host is noticed at once.
      slot_bytes: bytes of one slot of a rank's ring, a multiple of 128
        (`JAX_CXL_SLOT_BYTES`); 0 derives it from the size of the pool.
      num_slots: slots of a ring, 2 to 12 (`JAX_CXL_NUM_SLOTS`); 0 derives it from the number
        of pool devices.
      flush_threads: threads that each GPU of the process gets in pools with `coherence=flush`
        (`JAX_CXL_FLUSH_THREADS`, 1 to 16). They pass doorbells on, and write back and drop cache
        lines. They sleep while nothing is enqueued. 0 takes the number in the tuning table, or a
        quarter of the process's cores, at most 4.
      tuning: file with a table that `python -m jax_cxl tune` wrote, the same on all processes
        (`JAX_CXL_TUNING`); None for the built-in one.
      log: "info" prints what each process starts with, and which collectives of each program go
        through the pool (`JAX_CXL_LOG`); None prints warnings only.
    """

    pool: str | None = None
    timeout: float = 300.0
    warn_after: float = 10.0
    connect_timeout: float = 80.0
    heartbeat_timeout: float = 5.0
    slot_bytes: int = 0
    num_slots: int = 0
    flush_threads: int = 0
    tuning: str | None = None
    log: str | None = None

    def __post_init__(self) -> None:
        seconds = ("timeout", "warn_after", "connect_timeout", "heartbeat_timeout")
        # A comparison with nan is false, so nan is refused too.
        demands = {name: ("greater than 0", getattr(self, name) > 0) for name in seconds} | {
            "log": ("info or warning", self.log in (None, "info", "warning")),
            "slot_bytes": (
                "a multiple of 128",
                self.slot_bytes >= 0 and self.slot_bytes % 128 == 0,
            ),
            "num_slots": ("2 to 12", self.num_slots in (0, *range(2, 13))),
            "flush_threads": ("0 to 16", 0 <= self.flush_threads <= 16),
        }
        for name, (demand, met) in demands.items():
            if not met:
                value = getattr(self, name)
                raise ValueError(f"JAX_CXL_{name.upper()} must be {demand}, got {value!r}.")


def from_environment(environment: Mapping[str, str] = os.environ) -> Config:
    """Returns the settings that the environment variables give."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Config):
        text = environment.get(f"JAX_CXL_{field.name.upper()}")
        if not text:
            continue
        convert: Any = str if field.default is None else type(field.default)
        try:
            values[field.name] = convert(text)
        except ValueError:
            raise ValueError(
                f"JAX_CXL_{field.name.upper()}={text!r} is not a valid {convert.__name__}."
            ) from None
    return Config(**values)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Returns a sentence about each variable that looks like a setting but is not one."""
    settings = {field.name.upper() for field in dataclasses.fields(Config)} | {*_OF_NCCL}
    names = (name for name in vars(variables).values() if isinstance(name, str))
    settings |= {name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)}
    # Nobody sets the launcher's variables by hand, so do not suggest them.
    by_hand = [name for name in settings if not name.startswith("LAUNCH_")]
    found = []
    for variable in sorted(environment):
        name = variable.removeprefix(_PREFIX)
        known = name in settings or name in _OF_A_CHECKOUT or name.startswith("TEST_")
        if name == variable or known:
            continue
        import difflib

        nearest = difflib.get_close_matches(name, by_hand, n=1)
        hint = (
            f"did you mean {_PREFIX}{nearest[0]}?"
            if nearest
            else "docs/start/settings.md lists all"
        )
        found.append(f"jax_cxl does not know the environment variable {variable}: {hint}")
    return found


@functools.cache
def warn_of_unknown_variables() -> None:
    """Warns once about unknown variables of this process."""
    for problem in unknown_variables(os.environ):
        _text.warn("jax_cxl: warning: %s", problem)
