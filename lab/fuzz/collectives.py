"""Random collectives under jax.shard_map, and the same collectives in NumPy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cxl
from lab.fuzz import values

# Maps the values of the members of one group to their results, both in the order of the members.
Oracle = Callable[[list[np.ndarray]], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Step:
    """A collective, or an operation that each device does alone.

    Attributes:
      text: a description.
      call: maps a device's value to its result.
      oracle: maps the values of all devices to their results.
    """

    text: str
    call: Callable[[Any], Any]
    oracle: Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Draw:
    """The inputs from which a random collective is made.

    Attributes:
      rng: the generator of random numbers.
      shape: shape of the value of a device.
      dtype: dtype of this value.
      n: devices in a group.
      axes: the names of the axes that the collective runs over: one or several.
      module: jax.lax or jax_cxl.
    """

    rng: np.random.Generator
    shape: tuple[int, ...]
    dtype: np.dtype
    n: int
    axes: str | tuple[str, ...]
    module: Any

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))


def random_step(
    rng: np.random.Generator, x: np.ndarray, axes: tuple[str, ...], rows: np.ndarray, module: Any
) -> Step | None:
    """Returns a random step, or None if the step that was drawn does not work on values like `x`.

    Args:
      rng: the generator of random numbers.
      x: example values of all devices, stacked along the first dimension.
      axes: the axes of the mesh over which the step communicates.
      rows: a row for each group of devices, with the positions of its members in `x`.
      module: jax.lax or jax_cxl.
    """
    name = axes if len(axes) > 1 else axes[0]
    draw = _Draw(rng, x.shape[1:], x.dtype, rows.shape[1], name, module)
    makers = _COMMON + (_ROOTED if module is jax_cxl else ())
    maker = makers[draw.integer(0, len(makers))]
    made = maker(draw)
    if made is None:
        return None
    if maker is _ppermute and module is jax.lax:
        rows = np.sort(rows)  # It counts in the order of the mesh, whatever order the axes have.
    call, oracle = made

    def for_all(x: np.ndarray) -> np.ndarray:
        results: list[Any] = [None] * len(x)
        for row in rows:
            for place, result in zip(row, oracle(list(x[row])), strict=True):
                results[place] = result
        return np.stack(results)

    return Step(f"{maker.__name__[1:]}[{','.join(axes)}]", call, for_all)


def _sum(d: _Draw, parts: list[np.ndarray]) -> np.ndarray:
    return values.fold(sum(values.wide(part) for part in parts), True).astype(d.dtype)


def _reducible(d: _Draw) -> bool:
    return d.dtype.kind != "b" and values.can_sum(d.dtype, d.n)


def _psum(d: _Draw):
    if not _reducible(d):
        return None
    return (
        lambda x: values.fold(d.module.psum(values.fold(x, True), d.axes), True),
        lambda xs: [_sum(d, [values.fold(x, True) for x in xs])] * d.n,
    )


def _extreme(d: _Draw):
    if d.dtype.kind == "c":
        return None
    name, ufunc = (("pmax", np.maximum), ("pmin", np.minimum))[d.integer(0, 2)]
    call = getattr(d.module, name)
    return lambda x: call(x, d.axes), lambda xs: [ufunc.reduce(xs)] * d.n


def _all_gather(d: _Draw):
    tiled = bool(d.integer(0, 2)) and len(d.shape) > 0
    axis = d.integer(0, len(d.shape) + (not tiled))
    join = np.concatenate if tiled else np.stack
    return (
        lambda x: d.module.all_gather(x, d.axes, axis=axis, tiled=tiled),
        lambda xs: [join(xs, axis)] * d.n,
    )


def _psum_scatter(d: _Draw):
    axes = [i for i, size in enumerate(d.shape) if size % d.n == 0]
    if not axes or not _reducible(d):
        return None
    axis = axes[d.integer(0, len(axes))]

    def call(x):
        x = values.fold(x, True)
        scattered = d.module.psum_scatter(x, d.axes, scatter_dimension=axis, tiled=True)
        return values.fold(scattered, True)

    return call, lambda xs: np.split(_sum(d, [values.fold(x, True) for x in xs]), d.n, axis)


def _all_to_all(d: _Draw):
    axes = [i for i, size in enumerate(d.shape) if size % d.n == 0]
    if not axes:
        return None
    split, join = axes[d.integer(0, len(axes))], d.integer(0, len(d.shape))
    return (
        lambda x: d.module.all_to_all(x, d.axes, split, join, tiled=True),
        lambda xs: [
            np.concatenate([np.split(x, d.n, split)[r] for x in xs], join) for r in range(d.n)
        ],
    )


def _ppermute(d: _Draw):
    count = d.integer(0, d.n + 1)
    sources, targets = d.rng.permutation(d.n).tolist(), d.rng.permutation(d.n).tolist()
    pairs = list(zip(sources, targets, strict=True))[:count]

    def oracle(xs):
        results = [np.zeros_like(x) for x in xs]
        for source, target in pairs:
            results[target] = xs[source]
        return results

    return lambda x: d.module.ppermute(x, d.axes, pairs), oracle


def _shift_and_transpose(d: _Draw):
    """A step without communication: each device changes the layout of its own array."""
    order = d.rng.permutation(len(d.shape)).tolist()

    def oracle(xs):
        return [np.roll(x, 1).transpose(order) for x in xs]

    return lambda x: jnp.transpose(jnp.roll(x, 1), order), oracle


def _sum_in_a_loop(d: _Draw):
    if not _reducible(d) or not d.shape:
        return None

    def call(x):
        def body(carry, row):
            carry = values.fold(carry + d.module.psum(row, d.axes), True)
            return carry, carry

        # shard_map requires that the carry varies over the same axes as the rows. So the first
        # carry is made from x.
        return jax.lax.scan(body, values.fold(x[0] * 0, True), values.fold(x, True))[1]

    def oracle(xs):
        sums = _sum_unfolded(d, xs)
        carry, rows = np.zeros_like(sums[0]), []
        for row in sums:
            carry = values.fold(carry + row, True)
            rows.append(carry)
        return [np.stack(rows).astype(d.dtype)] * d.n

    return call, oracle


def _sum_unfolded(d: _Draw, xs: list[np.ndarray]) -> Any:
    return sum(values.wide(values.fold(x, True)) for x in xs)


def _broadcast(d: _Draw):
    root = d.integer(0, d.n)
    return (
        lambda x: jax_cxl.broadcast(x, d.axes, root=root),
        lambda xs: [xs[root]] * d.n,
    )


def _prefix(d: _Draw):
    if not _reducible(d):
        return None
    return (
        lambda x: values.fold(jax_cxl.pscan(values.fold(x, True), d.axes), True),
        lambda xs: [
            _sum(d, [values.fold(x, True) for x in xs[: r + 1]]).astype(d.dtype) for r in range(d.n)
        ],
    )


_COMMON = (
    *(_psum, _extreme, _all_gather, _psum_scatter, _all_to_all, _ppermute),
    *(_shift_and_transpose, _sum_in_a_loop),
)
_ROOTED = (_broadcast, _prefix)
