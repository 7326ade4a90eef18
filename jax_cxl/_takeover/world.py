"""Which rank and which process each device is."""

from typing import NamedTuple

from jax_cxl._takeover.hlo.groups import Groups


class World(NamedTuple):
    """The devices of a job.

    Attributes:
      rank_of: global device id -> rank in the pool's world, for the devices that communicate.
      process_of: global device id -> index of the process that holds it.
      generation: how many times the job has started again, or continued after an error.
      local, levels: as in `Setting`.
      gpus: whether the devices are GPUs, whose calls may need scratch memory.
    """

    rank_of: dict[int, int]
    process_of: dict[int, int]
    generation: int = 0
    local: bool = False
    levels: bool | None = False
    gpus: bool = False

    def why_not(self, groups: Groups) -> str:
        """Returns why a collective over these groups should stay with XLA, "" if it should not."""
        if all(len(set(group)) < 2 for group in groups):
            return "no data move: each group has one device"
        crosses = any(len({self.process_of[device] for device in group}) > 1 for group in groups)
        return "" if self.local or crosses else "its groups lie within one process"
