"""Runs different programs on the ranks, and prints the error that each rank gets."""

import functools
import json
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl

X = np.arange(4, dtype=np.float32)


def psum(v):
    return jax_cxl.psum(v, "i")  # psum


def also_psum(v):
    return jax_cxl.psum(v, "i")  # also_psum


def all_gather(v):
    return jax_cxl.all_gather(v, "i")  # all_gather


def pmax(v):
    return jax_cxl.pmax(v, "i")  # pmax


def forward(v):
    n = jax.lax.axis_size("i")
    return jax_cxl.ppermute(v, "i", [(i, (i + 1) % n) for i in range(n)])  # forward


def backward(v):
    n = jax.lax.axis_size("i")
    return jax_cxl.ppermute(v, "i", [(i, (i - 1) % n) for i in range(n)])  # backward


def from_0(v):
    return jax_cxl.broadcast(v, "i", root=0)  # from_0


def from_1(v):
    return jax_cxl.broadcast(v, "i", root=1)  # from_1


def psum_then_pmax(v):
    w = psum(v)
    return pmax(w)


def pmax_then_psum(v):
    w = pmax(v)
    return psum(w)


def in_levels(v):
    return jax_cxl.psum(v, "i", levels=True)  # in_levels


def flat(v):
    return jax_cxl.psum(v, "i", levels=False)  # flat


def branches_of_levels(v):
    """One program, in which only rank 0 chooses levels."""
    chosen = (jax.lax.axis_index("i") == 0) & (v.sum() > 0)
    return jax.lax.cond(chosen, in_levels, flat, v)


def branches(v):
    """One program, in which a rank's own values choose the collective."""
    chosen = (jax.lax.axis_index("i") == 0) & (v.sum() > 0)
    return jax.lax.cond(chosen, psum, lambda w: pmax(w), v)


def loops(v):
    """One program, whose loop has more iterations on rank 0."""
    turns = 2 + (jax.lax.axis_index("i") == 0)
    return jax.lax.fori_loop(0, turns, lambda _, w: psum(w), v)


class Program:
    """Runs a function on each of the first `ranks` ranks, by default on all."""

    def __init__(self, function, x=X, ranks=None):
        self._function, self._x, self._ranks = function, x, ranks

    def compile(self):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[: self._ranks]), ("i",))
        body = jax.shard_map(
            lambda: jax.tree.map(jnp.sum, self._function(jnp.asarray(self._x))),
            mesh=mesh, in_specs=(), out_specs=jax.P(), check_vma=False,
        )  # fmt: skip
        self._compiled = jax.jit(body).lower().compile()

    def __call__(self):
        jax.block_until_ready(self._compiled())


class WithoutJit(Program):
    """Runs a function operation by operation."""

    def compile(self):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
        self._compiled = functools.partial(
            jax.shard_map(
                self._function, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False
            ),
            self._x,
        )


class Pause:
    """Makes its rank late."""

    def compile(self):
        pass

    def __call__(self):
        time.sleep(1.5)


PSUM, PMAX = Program(psum), Program(pmax)
# Each case has two lists: the programs that rank 0 runs one after another, and those that every
# other rank runs.
CASES = {
    "operation": ([PSUM], [Program(all_gather)]),
    "reduction": ([PSUM], [PMAX]),
    "without_jit": ([WithoutJit(psum)], [WithoutJit(pmax)]),
    "dtype": ([PSUM], [Program(psum, X.astype(np.int32))]),
    "count": ([PSUM], [Program(psum, X[:3])]),
    "root": ([Program(from_0)], [Program(from_1)]),
    "permutation": ([Program(forward)], [Program(backward)]),
    "eager": ([PSUM], [Program(psum, np.ones(1 << 16, np.float32))]),
    # The three cases of levels need several devices in a process.
    "levels": ([Program(in_levels)], [Program(flat)]),
    "levels_of_one_element": ([Program(flat, X[:1])], [Program(in_levels, X[:1])]),
    "levels_branch": ([Program(branches_of_levels)], [Program(branches_of_levels)]),
    "group": ([Program(psum, ranks=2)], [PSUM]),
    "order": ([PSUM, PMAX], [PMAX, PSUM]),
    "order_in_program": ([Program(psum_then_pmax)], [Program(pmax_then_psum)]),
    "branch": ([Program(branches)], [Program(branches)]),
    "number": ([PSUM] * 3, [PSUM] * 2),
    "number_then_another": ([PSUM, PSUM, PMAX], [PSUM, PMAX]),
    "loop": ([Program(loops)], [Program(loops)]),
    # These two cases are no mismatch: one rank is late, or calls from another line.
    "late": ([PSUM, PMAX], [PSUM, Pause(), PMAX]),
    "line": ([PSUM, PMAX], [Program(also_psum), PMAX]),
}
_CASE = flags.DEFINE_enum("case", "operation", CASES, "Which programs to run.")


def main(_) -> None:
    jax_cxl.initialize()
    rank = jax.process_index()
    programs = CASES[_CASE.value][min(rank, 1)]
    for program in (*programs, together := Program(psum, X[:2])):
        program.compile()
    together()
    start = time.time()
    caught = {}
    try:
        for program in programs:
            program()
    except jax_cxl.MismatchError as error:
        caught = {"text": str(error), "ranks": error.ranks, "calls": error.calls}
    print("caught " + json.dumps({**caught, "rank": rank, "at": [start, time.time()]}), flush=True)
    if not caught:
        return  # Ends normally: the others learn from that.
    # At a normal exit, jax.distributed would wait for the others, so this process ends at once. The
    # pause lets the others find the mismatch first.
    time.sleep(1)
    os._exit(0)


if __name__ == "__main__":
    app.run(main)
