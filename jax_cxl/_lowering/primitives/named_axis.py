"""Axis names, axis index groups and varying types.

The named axis of a collective is either a manual axis of the mesh (inside `jax.shard_map`) or an
axis of `jax.vmap(..., axis_name=...)`. Only collectives over manual axes reach the pool. Over an
axis of `jax.vmap`, the batching rules replace the collective by operations on one device. Varying
types (`check_vma=True`) contain manual axes only.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax import lax

from jax_cxl import _compat
from jax_cxl._lowering.primitives import arguments, dtypes

# Types of arguments of the public functions, and of what `groups_along` returns.
AxisName = Hashable | Sequence[Hashable]
GroupLists = Sequence[Sequence[int]] | None
Axes = tuple[Hashable, ...]
Groups = tuple[tuple[int, ...], ...] | None


def axes_of(op: str, axis_name: Any) -> Axes:
    """Returns `axis_name` as a tuple of bound axes. Raises the errors of `check_bound`."""
    axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    if len(set(axes)) != len(axes):
        raise ValueError(f"jax_cxl.{op}: axis_name={axes} names an axis twice. Name it once.")
    for axis in axes:
        if isinstance(axis, int):
            raise TypeError(
                f"jax_cxl.{op} works over named axes, got axis_name={axis!r}. Reduce"
                " positional axes with jax.numpy."
            )
        check_bound(op, axis)
    return axes


def permuted_axes_of(op: str, axis_name: Any) -> Axes:
    """Returns `axis_name` as `axes_of` does, in the order in which a permutation counts ranks.

    `jax.lax.ppermute` of the installed JAX counts ranks in the same order.
    """
    axes = axes_of(op, axis_name)
    names = jax.sharding.get_abstract_mesh().axis_names
    if not all(axis in names for axis in axes):
        return axes
    in_mesh_order = tuple(sorted(axes, key=names.index))
    if axes != in_mesh_order and _compat.tracing.refuses_other_orders_of_axes():
        raise ValueError(
            f"jax_cxl.{op}: axis_name={axes} is not in the order of the mesh, {in_mesh_order}."
            " Pass the axes in that order. To count ranks in the order that you pass, call this"
            " under `with jax.raise_on_ppermute_sort_diff(False):`, as for jax.lax."
        )
    return in_mesh_order if _compat.tracing.sorts_axes_of_ppermute() else axes


def check_bound(op: str, axis: Hashable) -> None:
    """Raises unless `axis` is bound and collectives over it are allowed."""
    try:
        lax.axis_size(axis)
    except NameError:
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.manual_axes and axis in mesh.axis_names:
            vmapped = (
                " If jax.vmap is around jax.shard_map, jax.vmap takes this axis for itself when"
                " the dimension that it maps is sharded over the axis. In this case call"
                " jax.reshard on the argument first, so that this dimension is not sharded."
            )
            raise NotImplementedError(
                f"jax_cxl.{op}: mesh axis {axis!r} is not manual here (manual axes:"
                f" {mesh.manual_axes}). Add it to `axis_names` of jax.shard_map, or"
                " leave `axis_names` out so that all mesh axes are manual."
                + vmapped
                * (axis in mesh.explicit_axes)
            ) from None
        where = f" The mesh has the axes {mesh.axis_names}." if mesh.axis_names else ""
        raise NameError(
            f"Found an unbound axis name: {axis}. To fix this, please call jax_cxl.{op}"
            f" under `jax.shard_map` over a mesh with this axis.{where}"
        ) from None
    if axis in _compat.tracing.forbidden_axes():
        raise ValueError(
            f"jax_cxl.{op}: JAX forbids collectives over axis {axis!r} here. Move the call out of"
            " this function."
        )


def groups_along(op: str, axis_name: Any, lists: GroupLists) -> tuple[Axes, Groups, int]:
    """Returns the axes and the checked groups of a collective, and the size of a group."""
    axes = axes_of(op, axis_name)
    size = lax.axis_size(axes)
    if lists is None:
        return axes, None, size
    groups = arguments.tuples(op, "axis_index_groups", lists)
    if sorted(i for group in groups for i in group) != list(range(size)):
        raise ValueError(
            f"jax_cxl.{op}: axis_index_groups must cover all indices exactly once: the"
            f" indices of {axes} are 0 to {size - 1}, got {groups}."
        )
    if len({len(group) for group in groups}) > 1:
        raise ValueError(
            f"jax_cxl.{op}: axis_index_groups must all have the same size, got {groups}."
        )
    return axes, groups, len(groups[0])


def manual(axes: Axes) -> Axes:
    """Returns the axes that are manual axes of the mesh, without the axes of `jax.vmap`."""
    names = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in axes if axis in names)


def check_vmapped(name: str, axis: Any, axes: Any, groups: Any, *, others: bool = False) -> None:
    """Checks that a collective over an axis of vmap has no groups, and no unwanted other axes."""
    if groups is not None:
        raise NotImplementedError(
            f"jax_cxl.{name}: axis_index_groups do not work over the axis {axis!r} of jax.vmap."
            " Leave the groups out, or use a mesh axis."
        )
    if len(axes) > 1 and not others:
        raise NotImplementedError(
            f"jax_cxl.{name} over {axes}, of which {axis!r} is an axis of jax.vmap: call it once"
            " for each axis."
        )


def to_front(x: Any, d: int | None, size: int) -> Any:
    """Returns x with its batch dimension d first. If d is None, it repeats x `size` times."""
    return jax.numpy.broadcast_to(x, (size, *x.shape)) if d is None else jax.numpy.moveaxis(x, d, 0)


def varying(x: Any) -> frozenset:
    """Returns the axes over which x varies. Without check_vma there are none."""
    return jax.typeof(x).manual_axis_type.varying if _compat.tracing.check_vma() else frozenset()


def check_summed(x: Any, axes: Axes) -> None:
    """Raises NotImplementedError for an array that is unreduced or reduced over one of `axes`."""
    kind = jax.typeof(x).manual_axis_type
    if (kind.unreduced | kind.reduced) & set(axes):
        raise NotImplementedError(
            f"jax_cxl's collectives do not take arrays that are unreduced or reduced over {axes},"
            f" got {jax.typeof(x)}. Use jax.lax's collective for this array; under"
            " jax_cxl.replace_collectives() it goes through the pool too."
        )


def vary(x: Any, axes: Axes) -> Any:
    """Casts x to vary over `axes`, as `jax.lax` does before every collective."""
    if not _compat.tracing.check_vma():
        return x
    check_summed(x, axes)
    known = varying(x)
    missing = tuple(axis for axis in manual(axes) if axis not in known)
    return lax.pcast(x, missing, to="varying") if missing else x


def vary_alike(axes: Axes, *arrays: Any) -> list[Any]:
    """Casts arrays to vary over the axes, and over all axes over which any of them varies."""
    every = {axis for x in arrays for axis in varying(x)} | set(axes)
    return [vary(x, tuple(every)) for x in arrays]


def bind_reduction(primitive: Any, x: Any, axes: Axes, groups: Groups, levels: bool | None) -> Any:
    """Binds a primitive with the parameters `axes`, `groups`, `invariant` and `levels`."""
    if not _compat.tracing.check_vma() or groups is not None:
        # With groups, ranks of different groups have different results, so these stay varying.
        return primitive.bind(
            vary(x, axes), axes=axes, groups=groups, invariant=False, levels=levels
        )
    # Axes of vmap have no varying type, and their transpose differs from mesh axes'. So bind
    # the primitive separately for each of the two kinds.
    mesh_axes = manual(axes)
    vmap_axes = tuple(axis for axis in axes if axis not in mesh_axes)
    if vmap_axes:
        x = primitive.bind(x, axes=vmap_axes, groups=None, invariant=False, levels=levels)
    if mesh_axes:
        x = primitive.bind(
            vary(x, mesh_axes), axes=mesh_axes, groups=None, invariant=True, levels=levels
        )
    return x


def root_of(op: str, argument: str, root: Any, axes: Axes) -> int:
    """Checks the index of a root along the axes, and returns it as an int."""
    if isinstance(root, jax.core.Tracer):
        raise NotImplementedError(
            f"jax_cxl.{op}: {argument} must be a Python int, not a traced value. Pass a"
            " constant, or gather and index: jax_cxl.all_gather(x, axis_name)[root]."
        )
    root, size = arguments.integer(op, argument, root), lax.axis_size(axes)
    if not 0 <= root < size:
        raise ValueError(
            f"jax_cxl.{op}: {argument}={root} is out of bounds for {axes} of size {size}. Pass 0"
            f" to {size - 1}."
        )
    return root


def only_at(x: Any, axes: Axes, root: int) -> Any:
    """Returns x on the rank `root`, and zeros on the others, where x may be undefined."""
    return jax.numpy.where(lax.axis_index(axes) == root, x, jax.numpy.zeros_like(x))


def abstract_result(
    op: str, x: Any, axes: Axes, *, shape=None, invariant=False, strong=False
) -> tuple:
    """Checks the operand of a collective. Returns the type of the result and the effects.

    The shape is by default that of the operand. An `invariant` result is equal on all ranks along
    `axes`, so that it does not vary over them. A `strong` result is never weakly typed.
    """
    effects = {effect(op, axis) for axis in axes}
    dtypes.check_dtype(op, x.dtype)
    vma = x.manual_axis_type
    if _compat.tracing.check_vma() and not set(manual(axes)) <= vma.varying:
        raise ValueError(
            f"jax_cxl.{op} needs an array that varies over {axes}, got one that varies"
            f" over {sorted(map(str, vma.varying))}. Cast it with jax.lax.pcast(x,"
            f" {axes}, to='varying'), or pass check_vma=False to jax.shard_map."
        )
    if invariant:
        vma = vma.update(varying=vma.varying - set(axes))
    shape = x.shape if shape is None else tuple(shape)
    weak_type = x.weak_type and not strong
    return x.update(shape=shape, manual_axis_type=vma, weak_type=weak_type), effects


def effect(op: str, axis: Hashable) -> Any:
    """Returns the effect by which an equation depends on a bound axis."""
    check_bound(op, axis)
    return _compat.tracing.NamedAxisEffect(axis)
