"""Describes machines, and models the time that jax_cxl takes on them for one call."""

import dataclasses

from lab.simulator import _simulator, constants as c

OPS = (
    *("all_gather", "broadcast", "gather", "scatter"),
    *("all_reduce", "reduce_scatter", "reduce", "all_to_all"),
)
# Operations whose input holds a block for each rank, and operations whose output does.
_WIDE_INPUT = ("reduce_scatter", "all_to_all", "scatter")
_WIDE_OUTPUT = ("all_gather", "all_to_all", "gather")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A machine.

    Attributes:
      hosts: number of hosts that share the pool.
      cards: number of pool devices.
      gpus_per_host: GPUs of each host. Each GPU is a rank.
      links_per_host: links of each host to the pool. The GPUs of a host share them evenly.
      coherence: `uncached` or `flush`. With `uncached`, the GPU rings doorbells itself, so this
        stands for `coherent` too. With `flush`, the GPU's host passes doorbells on, and writes back
        and drops lines of its caches.
      slot_bytes: bytes of a slot of a rank's ring; 0: 2 MiB.
      even: replace the cards with one card that is as fast as all cards together, so that no card
        is busier than another.
      apart: let cards serve reads and writes at the same time, both at full rate.
      tier_write: bytes/s that each GPU writes to a store in the same pool during the call, such as
        activations or the state of an optimizer. The store lies on all cards in turn.
      tier_read: bytes/s that each GPU reads from that store during the call.
    """

    hosts: int = c.HOSTS
    cards: int = c.CARDS
    gpus_per_host: int = 1
    links_per_host: int = 1
    coherence: str = "uncached"
    slot_bytes: int = 0
    even: bool = False
    apart: bool = False
    tier_write: float = 0.0
    tier_read: float = 0.0

    @property
    def ranks(self) -> int:
        return self.hosts * self.gpus_per_host

    @property
    def geometry(self) -> _simulator.Geometry:
        """The sizes of the rings."""
        slot = {"slot_bytes": self.slot_bytes} if self.slot_bytes else {}
        return _simulator.gpu_geometry(self.cards, self.ranks, **slot)


@dataclasses.dataclass(frozen=True)
class Result:
    """One modeled call: its time, the busiest part of the machine, and how busy that part was."""

    seconds: float
    busiest: str = ""
    busy: float = 0.0


def element_count(op: str, total_bytes: int, ranks: int) -> int:
    """Returns how many elements of one byte a block has, given the size that nccl-tests prints.

    That size is the larger one of input and output. If the larger one has a block for each rank, a
    block is 1 / ranks of it. Otherwise a block is all of it.
    """
    if op == "barrier":
        return 0
    wide = op in _WIDE_INPUT or op in _WIDE_OUTPUT
    return max(1, total_bytes // ranks if wide else total_bytes)


def machine(setting: Setting) -> _simulator.SimMachine:
    """Returns the machine of a setting, whose rates are reduced by the store's traffic.

    Raises:
      ValueError: the store's traffic takes all of one of the rates.
    """
    result = _simulator.SimMachine()
    result.hosts = setting.hosts
    result.gpus_per_host = setting.gpus_per_host
    result.links_per_host = setting.links_per_host
    result.cards, each = (1, setting.cards) if setting.even else (setting.cards, 1)
    written, read = setting.tier_write, setting.tier_read
    result.gpu_out = _left("a GPU's writes", c.GPU_OUT, written)
    result.gpu_in = _left("a GPU's reads", c.GPU_IN, read)
    of_link = setting.gpus_per_host / setting.links_per_host
    result.uplink = _left("a host's link", c.UPLINK, of_link * max(written, read))
    of_card = setting.ranks / result.cards
    result.card_in = _left("a card's writes", each * c.CARD_IN, of_card * written)
    result.card_out = _left("a card's reads", each * c.CARD_OUT, of_card * read)
    both = c.CARD_IN + c.CARD_OUT if setting.apart else c.CARD_BOTH
    result.card_both = _left("a card", each * both, of_card * (written + read))
    result.memory = c.MEMORY
    return result


def _left(what: str, rate: float, taken: float) -> float:
    if taken >= rate:
        raise ValueError(
            f"the store's traffic takes {taken / c.GB:.3g} GB/s of {what}, which has"
            f" {rate / c.GB:.3g} GB/s: nothing is left for collectives"
        )
    return rate - taken


def _our_costs(setting: Setting) -> _simulator.SimCosts:
    costs = _simulator.SimCosts()
    costs.get_latency = c.POOL_LOAD
    costs.doorbell_bytes = c.DOORBELL_BYTES
    costs.start = c.KERNEL_START
    costs.ring = c.KERNEL_FENCE
    costs.doorbell = c.KERNEL_DOORBELL
    costs.poll = c.KERNEL_POLL
    if setting.coherence == "flush":
        costs.doorbell = c.RELAYED_DOORBELL
        costs.poll = c.DRAM_LOAD
        costs.write_back_rate, costs.drop_rate = c.WRITE_BACK_RATE, c.DROP_RATE
    return costs


def ours(op: str, total_bytes: int, setting: Setting, *, exact: bool = False) -> Result:
    """Returns the modeled time of a call of jax_cxl.

    Args:
      exact: model every copy of every round, however long that takes.
    """
    report = _simulator.simulate_plans(
        op,
        element_count(op, total_bytes, setting.ranks),
        1,
        machine(setting),
        _our_costs(setting),
        geometry=setting.geometry,
        flags=setting.coherence != "flush",
        sample_rounds=0 if exact else max(c.SAMPLE_ROUNDS, c.SAMPLE_WORK // setting.ranks**2),
    )
    return Result(report.seconds, report.busiest, report.busy)


def bound_seconds(op: str, total_bytes: int, setting: Setting) -> float:
    """Returns the least time of any library, to move the bytes of cc/simulator/bounds.h."""
    return max(_bound_parts(op, total_bytes, setting))


def least_seconds(op: str, total_bytes: int, setting: Setting) -> float:
    """Returns the least time of any library that starts a kernel and signals with flags.

    This is `bound_seconds` plus the start of a kernel, which jax_cxl and NCCL both need, and the
    time for which the machine is not fully used. The first byte takes as long as a flag to reach a
    reader, and so does the last byte. Until the first byte arrives, cards only take writes. After
    the last byte was written, they only serve reads.
    """
    flight = c.KERNEL_DOORBELL + c.KERNEL_POLL
    one_way, both_ways = _bound_parts(op, total_bytes, setting)
    rates = machine(setting)
    half_idle = 1 - max(rates.card_in, rates.card_out) / rates.card_both
    return c.KERNEL_START + max(one_way + flight, both_ways + 2 * flight * half_idle)


def _bound_parts(op: str, total_bytes: int, setting: Setting) -> tuple[float, float]:
    """Returns two lower bounds of the time of any library.

    Returns:
      The time that links and cards need for the slower one of their two directions, and the time
      that the cards need for reads and writes together.
    """
    count = element_count(op, total_bytes, setting.ranks)
    bytes_ = _simulator.bound_bytes(op, setting.ranks, count, 1)
    rank_written, rank_read = bytes_["rank"]
    written, read = bytes_["all"]
    rates = machine(setting)
    uplink = rates.uplink * setting.links_per_host / setting.gpus_per_host
    one_way = max(
        rank_written / min(rates.gpu_out, uplink),
        rank_read / min(rates.gpu_in, uplink),
        written / (rates.cards * rates.card_in),
        read / (rates.cards * rates.card_out),
    )
    return one_way, (written + read) / (rates.cards * rates.card_both)
