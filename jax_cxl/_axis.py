"""Axis names, axis index groups and varying types, which all collectives share.

An axis that a collective names is either a manual axis of the mesh (inside
`jax.shard_map`) or an axis of `jax.vmap(..., axis_name=...)`. Only the former ever
reaches the pool; the latter is resolved by the batching rules. Varying types
(`check_vma=True`) know the manual axes only.
"""

import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import batching

from jax_cxl import _compat

Axes = tuple[Hashable, ...]
Groups = tuple[tuple[int, ...], ...] | None

# In the order of jax_cxl::DType (cc/base/dtype.h): the position is the value.
DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3",
    "float8_e3m4",
    "float8_e8m0fnu",
)
# Of less than a byte: they travel in a wider type (_lowering.py).
PACKED_DTYPES = ("int2", "int4", "uint2", "uint4", "float4_e2m1fn")


def axes_of(op: str, axis_name: Any) -> Axes:
    """Returns `axis_name` as a tuple of bound axes.

    Raises:
      NameError: an axis is unbound, as outside `jax.shard_map`.
      NotImplementedError: an axis belongs to the mesh but is not manual.
      TypeError: an axis is an integer (a positional axis).
    """
    axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    if len(set(axes)) != len(axes):
        raise ValueError(f"jax_cxl.{op}: axis_name names an axis twice: {axes}.")
    for axis in axes:
        if isinstance(axis, int):
            raise TypeError(
                f"jax_cxl.{op} works over named axes, got axis_name={axis!r}. Reduce"
                " positional axes with jax.numpy."
            )
        check_bound(op, axis)
    return axes


def check_bound(op: str, axis: Hashable) -> None:
    """Raises unless `axis` is bound and collectives over it are allowed."""
    try:
        lax.axis_size(axis)
    except NameError:
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.manual_axes and axis in mesh.axis_names:
            raise NotImplementedError(
                f"jax_cxl.{op}: mesh axis {axis!r} is not manual here (manual axes:"
                f" {mesh.manual_axes}). Add it to `axis_names` of jax.shard_map, or"
                " leave `axis_names` out so that all mesh axes are manual."
            ) from None
        where = f" The mesh has the axes {mesh.axis_names}." if mesh.axis_names else ""
        raise NameError(
            f"Found an unbound axis name: {axis}. To fix this, please call jax_cxl.{op}"
            f" under `jax.shard_map` over a mesh with this axis.{where}"
        ) from None
    if axis in _compat.forbidden_axes():
        raise ValueError(f"jax_cxl.{op}: collectives over axis {axis!r} are forbidden here.")


def groups_of(op: str, axes: Axes, axis_index_groups: Sequence[Sequence[int]] | None) -> Groups:
    """Returns `axis_index_groups` in hashable form, checked against the axes."""
    if axis_index_groups is None:
        return None
    groups = tuple(tuple(int(i) for i in group) for group in axis_index_groups)
    size = lax.axis_size(axes)
    if sorted(i for group in groups for i in group) != list(range(size)):
        raise ValueError(
            f"jax_cxl.{op}: axis_index_groups must cover all indices exactly once: the"
            f" indices of {axes} are 0 to {size - 1}, got {groups}."
        )
    if len({len(group) for group in groups}) > 1:
        raise ValueError(
            f"jax_cxl.{op}: axis_index_groups must all have the same size, got {groups}."
        )
    return groups


def group_size(axes: Axes, groups: Groups) -> int:
    """Returns the number of ranks that one collective joins."""
    return lax.axis_size(axes) if groups is None else len(groups[0])


def dimension(op: str, argument: str, value: int, ndim: int) -> int:
    """Returns a dimension that may count from the end as one in [0, ndim)."""
    if not -ndim <= value < ndim:
        raise ValueError(
            f"jax_cxl.{op}: {argument}={value} is out of bounds for an array of dimension {ndim}."
        )
    return int(value) % ndim


def manual(axes: Axes) -> Axes:
    """Returns those axes that are manual axes of the mesh, and not axes of vmap."""
    names = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in axes if axis in names)


def varying(x: Any) -> frozenset:
    """Returns the axes over which x varies; none without check_vma."""
    return jax.typeof(x).manual_axis_type.varying if _compat.check_vma() else frozenset()


def vary(x: Any, axes: Axes) -> Any:
    """Casts x to vary over `axes`, as jax.lax does in front of every collective."""
    if not _compat.check_vma():
        return x
    known = varying(x)
    missing = tuple(axis for axis in manual(axes) if axis not in known)
    return lax.pcast(x, missing, to="varying") if missing else x


def bind_reduction(primitive: Any, x: Any, axes: Axes, groups: Groups) -> Any:
    """Binds a primitive with the parameters `axes`, `groups` and `invariant`."""
    if not _compat.check_vma() or groups is not None:
        # Results of groups differ from rank to rank, so they stay varying.
        return primitive.bind(vary(x, axes), axes=axes, groups=groups, invariant=False)
    # Axes of vmap have no varying type, and their gradient is another one than the mesh
    # axes'.
    mesh_axes = manual(axes)
    vmap_axes = tuple(axis for axis in axes if axis not in mesh_axes)
    if vmap_axes:
        x = primitive.bind(x, axes=vmap_axes, groups=None, invariant=False)
    if mesh_axes:
        x = primitive.bind(vary(x, mesh_axes), axes=mesh_axes, groups=None, invariant=True)
    return x


def count_bool(x: Any) -> Any:
    """Returns bool as int32, so that a sum counts; anything else as it is."""
    if isinstance(x, (bool, np.bool)):
        return int(x)
    return x.astype(np.int32) if jax.dtypes.result_type(x) == np.bool else x


def root_of(op: str, argument: str, root: Any, axes: Axes) -> int:
    """Returns the index of a root along the axes, checked."""
    if isinstance(root, jax.core.Tracer):
        raise NotImplementedError(
            f"jax_cxl.{op}: {argument} must be a Python int, not a traced value. Pass a"
            " constant, or gather and index: jax_cxl.all_gather(x, axis_name)[root]."
        )
    root, size = operator.index(root), lax.axis_size(axes)
    if not 0 <= root < size:
        raise ValueError(
            f"jax_cxl.{op}: {argument}={root} is out of bounds for {axes} of size {size}."
        )
    return root


def only_at(x: Any, axes: Axes, root: int) -> Any:
    """Returns x on one rank and zeros on the others, where x may be undefined."""
    return jax.numpy.where(lax.axis_index(axes) == root, x, jax.numpy.zeros_like(x))


def abstract_result(op: str, x: Any, axes: Axes, *, shape=None, invariant=False) -> tuple:
    """Checks the operand of a collective; returns its result's type and effects.

    Args:
      op: name of the public function, for messages.
      x: type of the operand.
      axes: axes of the collective.
      shape: shape of the result, by default the operand's.
      invariant: whether the result is the same over `axes`, so that it stops varying
        over them.
    """
    effects = {effect(op, axis) for axis in axes}
    check_dtype(op, x.dtype)
    vma = x.manual_axis_type
    if (vma.unreduced | vma.reduced) & set(axes):
        raise NotImplementedError(
            f"jax_cxl.{op} does not take arrays that are unreduced or reduced over"
            f" {axes}, got {x}. Use jax.lax.{op}, or cast the array with jax.lax.pcast."
        )
    if _compat.check_vma() and not set(manual(axes)) <= vma.varying:
        raise ValueError(
            f"jax_cxl.{op} needs an array that varies over {axes}, got one that varies"
            f" over {sorted(map(str, vma.varying))}. Cast it with jax.lax.pcast(x,"
            f" {axes}, to='varying'), or pass check_vma=False to jax.shard_map."
        )
    if invariant:
        vma = vma.update(varying=vma.varying - set(axes))
    out = x.update(shape=x.shape if shape is None else tuple(shape), manual_axis_type=vma)
    return out, effects


def effect(op: str, axis: Hashable) -> Any:
    """Returns the effect that ties an equation to a bound axis."""
    check_bound(op, axis)
    return _compat.NamedAxisEffect(axis)


def check_dtype(op: str, dtype: Any) -> None:
    """Raises TypeError for an element type that the pool's collectives do not know."""
    if str(dtype) in DTYPES or str(dtype) in PACKED_DTYPES:
        return
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        advice = "Pass its data, as from jax.random.key_data."
    else:
        advice = "Convert it to a supported dtype first, such as int8 or bfloat16."
    raise TypeError(f"jax_cxl.{op} does not support arrays of dtype {dtype}. {advice}")


def check_real(op: str, dtype: Any) -> None:
    """Raises TypeError for complex numbers, which have no order."""
    if jax.dtypes.issubdtype(dtype, np.complexfloating):
        raise TypeError(
            f"jax_cxl.{op} does not support arrays of dtype {dtype}: complex numbers"
            " have no order. Pass the real and the imaginary part."
        )


def check_sum(op: str, dtype: Any) -> None:
    """Raises TypeError for bool, whose sum is no bool."""
    if dtype == np.bool:
        raise TypeError(
            f"jax_cxl.{op} does not support arrays of dtype bool. Convert them to int32 to count."
        )


def reduce_in_one_rounding(reduce: Callable, x: Any, dims: tuple[int, ...]) -> Any:
    """Reduces positional dimensions as the pool reduces ranks: short floats in float32."""
    if jax.dtypes.issubdtype(x.dtype, np.floating) and x.dtype.itemsize < 4:
        return reduce(x.astype(np.float32), dims).astype(x.dtype)
    return reduce(x, dims)


def split(x: Any, dim: int, n: int) -> Any:
    """Reshapes dimension `dim` to (n, size / n)."""
    shape = np.shape(x)
    return lax.reshape(x, (*shape[:dim], n, shape[dim] // n, *shape[dim + 1 :]))


def merge(x: Any, dim: int) -> Any:
    """Reshapes dimensions `dim` and `dim + 1` to one."""
    shape = np.shape(x)
    return lax.reshape(x, (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]))


def register_batching(primitive: Any, other_axis: Callable, own_axis: Callable) -> None:
    """Registers the batching rule of a primitive with parameters `axes` and `groups`.

    Args:
      primitive: the primitive.
      other_axis: called as (x, d, **params) when vmap's axis is none of `axes` and x
        has the batch dimension d; returns the result and its batch dimension.
      own_axis: called as (x, d, axis_size, **params) when vmap's axis, of this size, is
        the only one; d is None for an operand without batch dimension. Returns the
        same.
    """

    def rule(axis_data, operands, dims, **params):
        (x,), (d,) = operands, dims
        axes = params["axes"]
        if axis_data.name not in axes:
            if d is None:
                return primitive.bind(x, **params), None
            return other_axis(x, d, **params)
        if params.get("groups") is not None:
            raise NotImplementedError(
                f"jax_cxl.{primitive.name}: axis_index_groups do not work over the axis"
                f" {axis_data.name!r} of jax.vmap."
            )
        if len(axes) > 1:
            raise NotImplementedError(
                f"jax_cxl.{primitive.name} over {axes}, of which {axis_data.name!r} is"
                " an axis of jax.vmap: call it once for each axis."
            )
        return own_axis(x, d, axis_data.size, **params)

    batching.fancy_primitive_batchers[primitive] = rule


def register_reduction_batching(primitive: Any, reduce: Callable, unmapped: Callable) -> None:
    """Registers the batching rule of a reduction to an array of the operand's shape.

    Args:
      primitive: the primitive, with parameters `axes` and `groups`.
      reduce: called as (x, dims) to reduce positional dimensions.
      unmapped: called as (x, size) to reduce `size` equal arrays x.
    """

    def rule(axis_data, operands, dims, *, axes, groups, **params):
        (x,), (d,) = operands, dims
        if axis_data.name not in axes:
            return primitive.bind(x, axes=axes, groups=groups, **params), d
        if groups is not None:
            raise NotImplementedError(
                f"jax_cxl.{primitive.name}: axis_index_groups do not work over the axis"
                f" {axis_data.name!r} of jax.vmap."
            )
        x = unmapped(x, axis_data.size) if d is None else reduce_in_one_rounding(reduce, x, (d,))
        rest = tuple(axis for axis in axes if axis != axis_data.name)
        return (primitive.bind(x, axes=rest, groups=None, **params) if rest else x), None

    batching.fancy_primitive_batchers[primitive] = rule
