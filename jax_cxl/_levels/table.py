"""When levels pay: a table, the same on all ranks."""

from jax_cxl._primitives.native_enums import Op

# Bytes of the larger one of a rank's buffers from which a collective between CPU devices runs in
# levels by itself. benchmarks/levels.py measures both ways (docs/levels.md). Where the pool is
# memory of the same machine, the steps inside a process copy as many bytes as levels save, so that
# only the largest sums gain. The other collectives run in levels only with levels=True.
LEAST_BYTES = {Op.ALL_REDUCE: 1 << 26}


def pays(op: Op, num_bytes: int) -> bool:
    """Returns whether a collective of several processes is faster in levels.

    Args:
      op: the collective.
      num_bytes: bytes of a rank's operand or of its result, whichever is larger.
    """
    return op in LEAST_BYTES and num_bytes >= LEAST_BYTES[op]
