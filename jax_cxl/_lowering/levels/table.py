"""From which size levels are faster: a part of the tuning table, on which all ranks have agreed."""

from collections.abc import Mapping

from jax_cxl._job import lifecycle
from jax_cxl._lowering.contract import Op
from jax_cxl._lowering.levels.split import Split

# The collectives that have levels.
OPS = (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.ALL_GATHER, Op.ALL_TO_ALL, Op.BROADCAST)
# Smaller groups of CPU devices run in levels only if a program asks for levels.
LEAST_CPU_RANKS = 8
# This value in the tuning table means that no size is large enough for levels.
NEVER = 1 << 62
# The fewest bytes of a chunk, for a collective between GPUs that is composed of steps. A chunk has
# the bytes of its step through the pool: of the operand or the result, whichever is larger.
# docs/levels.md explains why this is a constant.
CHUNK_BYTES = 4 << 20
# More chunks would shorten only the steps of the first and the last chunk, which do not overlap
# with other steps.
MOST_CHUNKS = 8


def field(op: Op, on_gpus: bool) -> str:
    """Returns the field of the tuning table that has the least bytes for levels."""
    return f"{'gpu_' if on_gpus else ''}levels_{op.name.lower()}_bytes"


def chunks(op: Op, num_bytes: int, grid: tuple[int, int], chunk_bytes: int) -> int:
    """Returns how many chunks of at least `chunk_bytes` a collective between GPUs is divided into.

    `num_bytes` are those of a rank's operand. `grid` has the numbers of processes and of ranks in
    each process.
    """
    processes, per_process = grid
    across = num_bytes
    if op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.BROADCAST):
        across //= per_process
    if op is Op.ALL_GATHER:
        across *= processes
    return min(max(across // chunk_bytes, 1), MOST_CHUNKS)


def limits(
    op: Op,
    flat: Mapping[int, float],
    in_levels: Mapping[int, float],
    margin: float,
    on_gpus: bool,
) -> dict[str, int]:
    """Returns the bytes from which a collective runs in levels, as a field of the tuning table.

    `flat` and `in_levels` have the times of one call and of levels, by bytes. At the limit and at
    all larger sizes, one call takes longer by at least the fraction `margin` of the time in levels.
    """
    limit = NEVER
    for size in sorted(flat, reverse=True):
        if flat[size] < in_levels[size] * (1 + margin):
            break
        limit = size
    return {field(op, on_gpus): limit}


def pays(op: Op, num_bytes: int, found: Split | None, on_gpus: bool) -> bool:
    """Returns whether a collective is faster in levels.

    `num_bytes` are those of a rank's operand or of its result, whichever is larger.
    """
    if op not in OPS or found is None or found.processes == 1:
        return False
    # Levels of 2 x 2 CPU devices save too little to be faster.
    if not on_gpus and found.at.size < LEAST_CPU_RANKS:
        return False
    least: int = getattr(lifecycle.ensure_started().tuning, field(op, on_gpus))
    return num_bytes >= least
