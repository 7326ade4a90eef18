"""Random operations that move or order the values of whole arrays, for JAX and for NumPy."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lab.fuzz import values

DIMENSIONS = (1, 2, 3, 4, 4, 6, 8, 8, 12, 16)


@dataclasses.dataclass
class Draw:
    """The inputs from which a random operation is made.

    Attributes:
      rng: the generator of random numbers.
      x: an example of its operand.
      exact: whether values are whole numbers.
      extras: dtype and shape of each operand besides `x` that the operation needs. The function
        that makes the operation appends to this list.
    """

    rng: np.random.Generator
    x: np.ndarray
    exact: bool
    extras: list[tuple[np.dtype, tuple[int, ...]]] = dataclasses.field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        """The operand's shape."""
        return self.x.shape

    def axis(self) -> int:
        """Returns a random dimension of the operand."""
        return int(self.rng.integers(self.x.ndim))

    def integer(self, low: int, high: int) -> int:
        """Returns a random integer from low to high - 1."""
        return int(self.rng.integers(low, high))

    def extra(self, shape: tuple[int, ...], dtype: Any = None) -> None:
        """Adds another operand of this shape to `extras`, by default with the dtype of `x`."""
        self.extras.append((np.dtype(dtype or self.x.dtype), shape))

    def replaced(self, axis: int, size: int) -> tuple[int, ...]:
        """Returns the operand's shape with the dimension `axis` changed to `size`."""
        return (*self.shape[:axis], size, *self.shape[axis + 1 :])


# Maps the array module (numpy or jax.numpy) and the operands to the result.
Apply = Callable[..., Any]


def transpose(d: Draw) -> Apply:
    order = d.rng.permutation(d.x.ndim).tolist()
    return lambda xp, x: xp.transpose(x, order)


def reshape(d: Draw) -> Apply:
    left, shape = d.x.size, []
    for _ in range(d.integer(0, 3)):
        divisors = [n for n in range(1, left + 1) if left % n == 0]
        shape.append(int(d.rng.choice(divisors)))
        left //= shape[-1]
    shape.insert(d.integer(0, len(shape) + 1), left)
    return lambda xp, x: xp.reshape(x, shape)


def roll(d: Draw) -> Apply:
    axis, by = d.axis(), d.integer(-5, 6)
    return lambda xp, x: xp.roll(x, by, axis)


def flip(d: Draw) -> Apply:
    axis = d.axis()
    return lambda xp, x: xp.flip(x, axis)


def strided(d: Draw) -> Apply:
    axis = d.axis()
    start, step = d.integer(0, d.shape[axis]), d.integer(1, 4)
    at = (slice(None),) * axis + (slice(start, None, step),)
    return lambda xp, x: x[at]


def pad(d: Draw) -> Apply:
    widths = [(d.integer(0, 3), d.integer(0, 3)) for _ in d.shape]
    return lambda xp, x: xp.pad(x, widths)


def concatenate(d: Draw) -> Apply:
    axis = d.axis()
    d.extra(d.replaced(axis, d.integer(1, 7)))
    return lambda xp, x, y: xp.concatenate([x, y], axis)


def tile(d: Draw) -> Apply:
    counts = [d.integer(1, 3) for _ in d.shape]
    return lambda xp, x: xp.tile(x, counts)


def gather(d: Draw) -> Apply:
    """Takes slices at indices that are an argument of the program."""
    axis = d.axis()
    d.extra((d.integer(1, 9),), np.int32)
    size = d.shape[axis]
    return lambda xp, x, at: xp.take(x, (at + 3) % size, axis)


def gather_fixed(d: Draw) -> Apply:
    axis = d.axis()
    at = d.rng.integers(0, d.shape[axis], d.integer(1, 9))
    return lambda xp, x: xp.take(x, at, axis)


def scatter(d: Draw) -> Apply:
    """Writes rows to indices that are fixed when the program is made, each at most once."""
    count = d.integer(1, d.shape[0] + 1)
    at = d.rng.permutation(d.shape[0])[:count]
    d.extra((count, *d.shape[1:]))

    def apply(xp, x, y):
        if xp is jnp:
            return x.at[at].set(y)
        x = x.copy()
        x[at] = y
        return x

    return apply


def dynamic_slice(d: Draw) -> Apply:
    sizes = [d.integer(1, n + 1) for n in d.shape]
    d.extra((d.x.ndim,), np.int32)

    def apply(xp, x, at):
        if xp is jnp:
            return jax.lax.dynamic_slice(x, list(at), sizes)
        starts = [min(max(int(a), 0), n - s) for a, n, s in zip(at, x.shape, sizes, strict=True)]
        return x[tuple(slice(a, a + s) for a, s in zip(starts, sizes, strict=True))]

    # No negative indices: JAX counts them from the end, and the NumPy version above does not.
    return lambda xp, x, at: apply(xp, x, xp.abs(at))


def dynamic_update(d: Draw) -> Apply:
    sizes = tuple(d.integer(1, n + 1) for n in d.shape)
    d.extra(sizes)
    d.extra((d.x.ndim,), np.int32)

    def apply(xp, x, y, at):
        at = xp.abs(at)
        if xp is jnp:
            return jax.lax.dynamic_update_slice(x, y, list(at))
        starts = [min(int(a), n - s) for a, n, s in zip(at, x.shape, sizes, strict=True)]
        x = x.copy()
        x[tuple(slice(a, a + s) for a, s in zip(starts, sizes, strict=True))] = y
        return x

    return apply


def where(d: Draw) -> Apply:
    d.extra(d.shape, bool)
    d.extra(d.shape[-1:])
    return lambda xp, x, mask, y: xp.where(mask, x, y)


def cast(d: Draw) -> Apply:
    # No unsigned dtypes, because NumPy and JAX convert negative numbers to them differently.
    dtypes = values.DTYPES if d.exact else values.REAL_DTYPES
    fitting = [t for t in dtypes if t.kind != "u" and (t.kind == "c" or d.x.dtype.kind != "c")]
    dtype = fitting[d.integer(0, len(fitting))]
    return lambda xp, x: values.fold(x, d.exact).astype(dtype)


def sort(d: Draw) -> Apply:
    axis = d.axis()
    return lambda xp, x: xp.sort(x, axis)


def argsort(d: Draw) -> Apply:
    axis = d.axis()
    return lambda xp, x: xp.argsort(x, axis, stable=True).astype(np.int32)


def extreme(d: Draw) -> Apply:
    name = ("max", "min")[d.integer(0, 2)]
    axes = some_axes(d)
    return lambda xp, x: getattr(xp, name)(x, axes)


def arg_extreme(d: Draw) -> Apply:
    name, axis = ("argmax", "argmin")[d.integer(0, 2)], d.axis()
    return lambda xp, x: getattr(xp, name)(x, axis).astype(np.int32)


def running_maximum(d: Draw) -> Apply | None:
    axis = d.axis()
    if d.x.dtype.kind == "b":
        return None
    return lambda xp, x: jax.lax.cummax(x, axis) if xp is jnp else np.maximum.accumulate(x, axis)


def truth(d: Draw) -> Apply:
    """Tests whether all elements along some dimensions are nonzero, or whether any are."""
    name, axes = ("all", "any")[d.integer(0, 2)], some_axes(d)
    return lambda xp, x: getattr(xp, name)(x != 0, axes)


def some_axes(d: Draw) -> tuple[int, ...]:
    """Returns one or more random dimensions of the operand."""
    count = d.integer(1, d.x.ndim + 1)
    return tuple(sorted(d.rng.permutation(d.x.ndim)[:count].tolist()))


def terms(d: Draw, axes: tuple[int, ...]) -> int:
    """Returns how many elements a reduction over these dimensions combines."""
    return math.prod(d.shape[axis] for axis in axes)


MOVING = (
    *(transpose, reshape, roll, flip, strided, pad, concatenate, tile, gather, gather_fixed),
    *(scatter, dynamic_slice, dynamic_update, where, cast),
)
# Operations for whole numbers only. With other values, rounding could decide which one is larger.
ORDERING = (sort, argsort, extreme, arg_extreme, running_maximum, truth)
