"""Threads launch programs of one name and of one shape; every sum must be the right one.

A plan, which is the same on all ranks, says which thread launches which program next. Everything
else is different on each rank: when threads wait for results, which other programs a rank compiles
or runs, and when it clears JAX's caches. Each launch has its own operand, so that a call that is
matched with a call of another launch has a wrong sum.

With --fail, a host callback raises in some launches, on all ranks or on one. The sums of all other
launches must be right, or end with an error of jax_cxl on every rank.
"""

import functools
import random
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_cxl

_REPLACE = flags.DEFINE_bool("replace", False, "Whether jax.lax's collectives are taken over.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the plan.")
_LAUNCHES = flags.DEFINE_integer("launches", 150, "Launches of the plan.")
_THREADS = flags.DEFINE_integer("threads", 3, "Threads that launch programs.")
_FAIL = flags.DEFINE_enum("fail", "", ["", "all", "one"], "On which ranks callbacks raise.")
_IN_STEP = flags.DEFINE_bool("in_step", False, "Whether a launch waits for the one before.")

_SIZE = 2000


class _Failed(Exception):
    pass


def _programs(mesh, psum):
    """Returns programs of few names, and what each multiplies the sum by."""

    def mapped(body):
        return jax.shard_map(
            body, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P(), check_vma=False
        )

    @functools.partial(jax.jit, static_argnames="train")
    def step(x, train):
        return mapped(lambda v: psum(v * (3.0 if train else 1.0), "i"))(x)

    @functools.partial(jax.jit, donate_argnums=0)
    def donated(x):
        return mapped(lambda v: psum(v * 5.0, "i"))(x)

    def turns(v):
        return jax.lax.fori_loop(0, 3, lambda k, w: psum(v, "i") + 0 * w, v)

    def checked(v):
        checked = jax.pure_callback(_check, jax.ShapeDtypeStruct((), v.dtype), v[0, 0])
        others = [psum(v * k, "i") for k in range(1, 5)]
        return psum(v * 0 + checked, "i") + sum(0 * other for other in others)

    step_of_another_line = jax.jit(lambda x: mapped(lambda v: psum(v * 1.0, "i"))(x))
    step_of_this_line = jax.jit(lambda x: mapped(lambda v: psum(v * 1.0, "i"))(x))
    programs = [
        (lambda x: step(x, train=False), 1.0),
        (lambda x: step(x, train=True), 3.0),
        (step_of_another_line, 1.0),
        (step_of_this_line, 1.0),
        (donated, 5.0),
        (jax.jit(mapped(turns)), 1.0),
    ]
    return [*programs, (jax.jit(mapped(checked)), 1.0)] if _FAIL.value else programs


# Numbers of the launches that fail on this rank.
_failing: set[int] = set()


def _check(value):
    number = int(np.asarray(value)) // 10
    if jax.process_index() == number % 2:
        time.sleep(0.01)
    if number in _failing:
        raise _Failed(f"launch {number} fails")
    return np.asarray(value)


def _disturb(rng, rank, programs, operand):
    """Does something that the other ranks do not do now."""
    kind = rng.randrange(8)
    if kind < 3:
        time.sleep(rng.random() * 0.01)
    elif kind == 3:
        jax.jit(lambda v: jnp.sin(v) + rank)(np.ones(4)).block_until_ready()
    elif kind == 4 and rng.random() < 0.2:
        jax.clear_caches()
    elif kind == 5 and rng.random() < 0.2:
        mesh = operand.sharding.mesh
        jax.jit(
            jax.shard_map(
                lambda v: jax_cxl.psum(v, "i") * 7.0, mesh=mesh, in_specs=jax.P("i"),
                out_specs=jax.P(), check_vma=False,
            )
        ).lower(operand).compile()  # fmt: skip


def main(_) -> None:
    jax_cxl.initialize()
    if _REPLACE.value:
        jax_cxl.replace_collectives(strict=True).start()
    rank, ranks = jax.process_index(), jax.device_count()
    mesh = jax_cxl.make_mesh((ranks,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.NamedSharding(mesh, jax.P("i"))
    programs = _programs(mesh, jax.lax.psum if _REPLACE.value else jax_cxl.psum)
    plan_rng = random.Random(_SEED.value)
    plan = [
        (plan_rng.randrange(_THREADS.value), plan_rng.randrange(len(programs)))
        for _ in range(_LAUNCHES.value)
    ]
    checked = [n for n, (_, program) in enumerate(plan) if _FAIL.value and program == 6]
    chosen = set(checked[1:-1:3])
    if _FAIL.value == "one":
        chosen = {checked[len(checked) // 2]}
    if _FAIL.value == "all" or rank == 0:
        _failing.update(chosen)

    def operand(number):
        # Rank r has 10 times the number of the launch, plus r.
        return jax.make_array_from_callback(
            (ranks, _SIZE),
            split,
            lambda index: np.full((1, _SIZE), 10.0 * number + index[0].start, np.float32),
        )

    turn = 0
    changed = threading.Condition()
    wrong, right, failed, stopped = [], [], [], []

    def finish(number, factor, result):
        want = factor * sum(10.0 * number + r for r in range(ranks))
        try:
            got = np.asarray(result)
        except jax_cxl.CxlError as error:
            stopped.append(f"{number}: {type(error).__name__}: {error}")
            return
        except Exception as error:
            if "_Failed" not in str(error) and "fails" not in str(error):
                raise
            failed.append(number)
            return
        (right if (got == want).all() else wrong).append(number)
        if number in wrong:
            print(f"launch {number} of {plan[number]}: {got[0, 0]} is not {want}", flush=True)

    def work(thread):
        nonlocal turn
        rng = random.Random(f"{_SEED.value} {rank} {thread}")
        unread = []
        for number, (launcher, program) in enumerate(plan):
            if launcher != thread:
                continue
            function, factor = programs[program]
            x = operand(number)
            with changed:
                while turn != number and not stopped:
                    changed.wait(0.1)
                if stopped:
                    break
                try:
                    unread.append((number, factor, function(x)))
                except jax_cxl.CxlError as error:
                    stopped.append(f"{number}: {type(error).__name__}: {error}")
                except Exception as error:
                    if "fails" not in str(error):
                        raise
                    failed.append(number)
                finally:
                    turn += 1
                    changed.notify_all()
            _disturb(rng, rank, programs, operand(0))
            while len(unread) > (0 if _IN_STEP.value else rng.randrange(6)):
                finish(*unread.pop(0))
        for each in unread:
            finish(*each)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(_THREADS.value)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = f"{len(right)} right, {len(wrong)} wrong, failed {sorted(failed)}"
    print(f"{text}, {'stopped: ' + stopped[0] if stopped else 'went on'}", flush=True)


if __name__ == "__main__":
    app.run(main)
