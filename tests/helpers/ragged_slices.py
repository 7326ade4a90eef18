"""Slices for tests of jax_cxl.ragged_all_to_all, and their results in NumPy."""

import jax
import numpy as np
import ops_harness as harness

from jax_cxl.ops import public as ops

ROWS, INTO, BATCH = 40, 50, 3


def oracle(operand, output, table):
    """Returns the results of all ranks.

    `table` has the shape (ranks, 4, ranks * slices). For each rank it has the four arguments
    input_offsets, send_sizes, output_offsets and recv_sizes of the exchange.
    """
    n = len(operand)
    slices = table.shape[2] // n
    result = output.copy()
    for sender in range(n):
        for k in range(n * slices):
            first, size, to, _ = table[sender, :, k]
            result[k // slices, to : to + size] = operand[sender, first : first + size]
    return result


def tables(rng, ranks=harness.RANKS, slices=2, rows=ROWS, into=INTO, dtype=np.int32):
    """Returns the table of slices of random sizes, some of them empty, in random places."""
    entries = ranks * slices
    size = rng.integers(0, rows // entries + 1, (ranks, entries))
    size[rng.random(size.shape) < 0.2] = 0

    def place(sizes, space):
        order = rng.permutation(len(sizes))
        gaps = rng.multinomial(space - sizes.sum(), [1 / (len(sizes) + 1)] * (len(sizes) + 1))
        offsets = np.empty_like(sizes)
        at = 0
        for gap, k in zip(gaps, order, strict=False):
            offsets[k] = at + gap
            at += gap + sizes[k]
        return offsets

    first = np.stack([place(s, rows) for s in size])
    by_receiver = size.reshape(ranks, ranks, slices).swapaxes(0, 1).reshape(ranks, entries)
    to = np.stack([place(s, into) for s in by_receiver])
    to = to.reshape(ranks, ranks, slices).swapaxes(0, 1).reshape(ranks, entries)
    return np.stack([first, size, to, by_receiver], axis=1).astype(dtype)


def routed(rng, kind, slices, rows):
    """Returns the table of slices as a router makes them: without gaps at senders and receivers."""
    ranks, entries = harness.RANKS, harness.RANKS * slices
    size = rng.multinomial(rows, [1 / entries] * entries, ranks)
    if kind == "all to one":
        size[:] = 0
        size[:, slices : 2 * slices] = rng.multinomial(rows, [1 / slices] * slices, ranks)
    elif kind == "empty ranks":
        size[::2] = 0
    elif kind == "nothing":
        size[:] = 0
    elif kind == "one row":
        size[:] = 0
        size[2, 0] = 1
    order = rng.permutation(entries)  # of the slices in the operand
    first = np.empty_like(size)
    first[:, order] = np.cumsum(size[:, order], 1) - size[:, order]
    by_receiver = size.reshape(ranks, ranks, slices).swapaxes(0, 1).reshape(ranks, entries)
    to = np.cumsum(by_receiver, 1) - by_receiver
    to = to.reshape(ranks, ranks, slices).swapaxes(0, 1).reshape(ranks, entries)
    return np.stack([first, size, to, by_receiver], axis=1).astype(np.int32)


def exchange(arguments, **options):
    operand, output, table = arguments
    return ops.ragged_all_to_all(operand, output, *table, axis_name="i", **options)


def batched(arguments):
    return jax.vmap(lambda *a: exchange(a))(*arguments)
