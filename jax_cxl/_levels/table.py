"""When levels pay: a table, the same on all ranks."""

from jax_cxl._primitives.native_enums import Op

# Bytes of the larger one of a rank's buffers from which a collective runs in levels by itself.
# benchmarks/levels.py measures both ways; docs/levels.md has the figures.
LEAST_BYTES = {
    Op.ALL_REDUCE: 1 << 21,
    Op.ALL_GATHER: 1 << 21,
    Op.REDUCE_SCATTER: 1 << 21,
    Op.ALL_TO_ALL: 1 << 21,
    Op.BROADCAST: 1 << 21,
}


def pays(op: Op, num_bytes: int) -> bool:
    """Returns whether a collective of several processes is faster in levels.

    Args:
      op: the collective.
      num_bytes: bytes of a rank's operand or of its result, whichever is larger.
    """
    return num_bytes >= LEAST_BYTES[op]
