"""Random sums, products and control flow on whole arrays, for JAX and for NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from lab.fuzz import values
from lab.fuzz.operations import Apply, Draw, some_axes, terms


def total(d: Draw) -> Apply | None:
    axes = some_axes(d)
    if not values.can_sum(d.x.dtype, terms(d, axes)):
        return None
    return _summed(d, lambda xp, x: xp.sum(x, axes, dtype=x.dtype))


def running_total(d: Draw) -> Apply | None:
    axis = d.axis()
    if not values.can_sum(d.x.dtype, d.shape[axis]):
        return None
    return _summed(d, lambda xp, x: xp.cumsum(x, axis, dtype=x.dtype))


def product(d: Draw) -> Apply | None:
    """Multiplies elements along some dimensions. The factors are -1, 0 and 1, or numbers near 1."""
    axes = some_axes(d)
    if d.x.dtype.kind == "c" and d.exact:
        return None

    def apply(xp, x):
        x = xp.fmod(values.wide(x), 2) if d.exact else 1 + 0.01 * values.wide(x)
        return xp.prod(x, axes)

    return lambda xp, x: apply(xp, x).astype(x.dtype)


def einsum(d: Draw) -> Apply | None:
    """Contracts one dimension with another array. The two may have further dimensions in common."""
    letters = "xyz"[: d.x.ndim]
    summed = letters[d.axis()]
    both = "".join(c for c in letters if c != summed and d.rng.random() < 0.3)
    other = both + summed + "w"
    sizes = dict(zip(letters, d.shape, strict=True)) | {"w": d.integer(1, 9)}
    if not values.can_sum(d.x.dtype, sizes[summed], factors=2):
        return None
    result = d.rng.permutation([*(c for c in letters if c != summed), "w"]).tolist()
    formula = f"{letters},{other}->{''.join(result)}"
    d.extra(tuple(sizes[c] for c in other))

    def apply(xp, x, y):
        x, y = (values.wide(values.fold(v, d.exact)) for v in (x, y))
        return xp.einsum(formula, x, y)

    return lambda xp, x, y: values.fold(apply(xp, x, y), d.exact).astype(x.dtype)


def scatter_add(d: Draw) -> Apply:
    """Adds rows at indices that are an argument of the program. An index may occur twice."""
    count = d.integer(1, 9)
    d.extra((count, *d.shape[1:]))
    d.extra((count,), np.int32)

    def apply(xp, x, y, at):
        x, at = values.fold(x, d.exact), (at + 3) % x.shape[0]
        if xp is jnp:
            return values.fold(x.at[at].add(y), d.exact)
        out = values.wide(x)
        np.add.at(out, at, values.wide(y))
        return values.fold(out, d.exact).astype(x.dtype)

    return apply


def add(d: Draw) -> Apply:
    """Adds another array, which is broadcast along the dimensions in which its size is 1."""
    d.extra(tuple(n if d.rng.random() < 0.7 else 1 for n in d.shape))
    return _summed(d, lambda xp, x, y: x + y)


def scan(d: Draw) -> Apply | None:
    """Adds each row and the sum of its elements to a carry. The sum is a collective in a loop."""
    if not values.can_sum(d.x.dtype, 2 * d.x.size // d.shape[0] + 4) or d.x.ndim < 2:
        return None
    step = functools.partial(_step, d)

    def apply(xp, x):
        if xp is jnp:
            return jax.lax.scan(lambda c, row: step(jnp, c, row), x[0], x)[1]
        carry, rows = x[0], []
        for row in x:
            carry, out = step(np, carry, row)
            rows.append(out)
        return np.stack(rows)

    return _summed(d, apply)


def _step(d, xp, carry, row):
    """Returns the carry and the output row of one step of the scan."""
    wide = values.wide(carry + row)
    carry = values.fold(wide + xp.sum(values.wide(row), dtype=wide.dtype), d.exact)
    carry = carry.astype(row.dtype)
    return carry, carry


def conditional(d: Draw) -> Apply | None:
    """A branch that the values choose. One of the two branches has a sum, and so a collective."""
    if not values.can_sum(d.x.dtype, 2 * d.shape[0]):
        return None

    def yes(xp, x):
        wide = values.wide(x)
        return values.fold(wide + xp.sum(wide, 0, dtype=wide.dtype), d.exact).astype(x.dtype)

    def no(xp, x):
        return xp.flip(x, 0)

    def apply(xp, x):
        chosen = xp.sum(values.wide(x) != 0) % 2 == 0
        if xp is jnp:
            return jax.lax.cond(chosen, lambda: yes(jnp, x), lambda: no(jnp, x))
        return yes(np, x) if chosen else no(np, x)

    return _summed(d, apply)


def loop(d: Draw) -> Apply | None:
    """A loop that repeats while any element is large, so its condition has a collective."""
    if d.x.dtype.kind == "c" or not d.exact:
        return None

    def apply(xp, x):
        def body(x):
            return xp.where(x > 1, xp.roll(x, 1, 0) - 1, xp.roll(x, 1, 0)).astype(x.dtype)

        if xp is jnp:
            count = jnp.array(0, jnp.int32)
            start = (count, x)
            return jax.lax.while_loop(
                lambda s: jnp.any(s[1] > 1) & (s[0] < 6), lambda s: (s[0] + 1, body(s[1])), start
            )[1]
        for _ in range(6):
            if not np.any(x > 1):
                break
            x = body(x)
        return x

    return _summed(d, apply)


def _summed(d: Draw, apply: Apply) -> Apply:
    """Returns `apply`, with `values.fold` applied to its operands and to its result."""

    def folded(xp, *operands):
        dtype = operands[0].dtype
        small = [values.wide(values.fold(operand, d.exact)) for operand in operands]
        return values.fold(apply(xp, *small), d.exact).astype(dtype)

    return folded


SUMMING = (*(total, running_total, product, einsum, scatter_add, add, scan, conditional, loop),)
