"""The environment variables of jax_cxl: this file is the only one that reads them."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of one process. All processes of a job should have the same.

    Attributes:
      pool: URI of the pool (`JAX_CXL_POOL`); None for one in /dev/shm, sized by itself.
      timeout: seconds that a rank waits for a peer that lives, before the collective fails on
        all ranks (`JAX_CXL_TIMEOUT`).
      warn_after: seconds after which a waiting rank says on stderr for whom it waits
        (`JAX_CXL_WARN_AFTER`).
      heartbeat_timeout: seconds without a sign of life after which a process on another host
        counts as dead (`JAX_CXL_HEARTBEAT_TIMEOUT`); the end of one on this host is seen at once.
      slot_bytes: bytes of one slot of a rank's ring, a multiple of 128
        (`JAX_CXL_SLOT_BYTES`); 0 derives it from the size of the pool.
      num_slots: slots of a ring, 2 to 12 (`JAX_CXL_NUM_SLOTS`); 0 derives it from the number
        of pool devices.
      tuning: file with a table that `python -m jax_cxl tune` wrote, the same on all processes
        (`JAX_CXL_TUNING`); None for the built-in one.
      fault: for tests only: makes a rank of this process die, stop, stall or scribble at one
        point of the protocol (`JAX_CXL_FAULT`), for example
        "rank=1,call=3,point=ring,pass=2,action=kill"; see cc/base/fault.h.
    """

    pool: str | None = None
    timeout: float = 300.0
    warn_after: float = 10.0
    heartbeat_timeout: float = 5.0
    slot_bytes: int = 0
    num_slots: int = 0
    tuning: str | None = None
    fault: str | None = None

    def __post_init__(self) -> None:
        for name in ("timeout", "warn_after", "heartbeat_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"JAX_CXL_{name.upper()} must be greater than 0.")
        if self.slot_bytes < 0 or self.slot_bytes % 128:
            raise ValueError(
                f"JAX_CXL_SLOT_BYTES must be a multiple of 128, got {self.slot_bytes}."
            )
        if self.num_slots != 0 and not 2 <= self.num_slots <= 12:
            raise ValueError(f"JAX_CXL_NUM_SLOTS must be 2 to 12, got {self.num_slots}.")


def from_environment(environment: Mapping[str, str] = os.environ) -> Config:
    """Returns the settings that the environment asks for.

    Raises:
      ValueError: a variable has a value out of range or of the wrong type.
    """
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
