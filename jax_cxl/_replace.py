"""jax_cxl.replace_lax: unmodified code communicates through the pool.

`jax.lax` collectives end as a few primitives of JAX, whoever calls them: a library that
has imported them long ago, the transpose of another collective, a varying type that is
dropped. This module gives these primitives another lowering, which asks a setting over
which axes it applies, and else does what JAX does. The setting is part of the key of JAX's
caches, so that no program lowered under one setting runs under another.
"""

import contextlib
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir

from jax_cxl import _compat, _lowering, _ranks
from jax_cxl._lowering import Op, ReduceOp
from jax_cxl.ops.ragged_all_to_all import exchange_alone

# True for all axes, a tuple for some, None where nothing was said.
_setting = jax.make_user_context(None)


class replace_lax(contextlib.ContextDecorator):
    """Makes `jax.lax` collectives over mesh axes run through the pool.

    Not only those that are called by name: also those that autodiff and JAX itself insert.
    Collectives over other axes stay JAX's; one over several axes goes through the pool if
    all of them are named. Rules of `jax.lax` hold in everything but the transport.

    The setting counts where a program is lowered: in the call of the outermost `jax.jit`. It
    holds for the current thread between `__enter__` and `__exit__`, and innermost settings
    win, or from `start` to `stop` for all threads of the process. Programs of one setting
    never serve another.

    Args:
      axes: name of a mesh axis, or several; by default all of them, and `()` is none.

    Raises:
      NotImplementedError: when a program is lowered that jax_cxl does not support, such as
        groups of unequal size, or a `jax.shard_map` with axes that are not manual.

    Example:
      >>> mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> mean = jax.jit(jax.shard_map(lambda x: jax.lax.pmean(x, "i"),
      ...                              mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P()))
      >>> with jax_cxl.replace_lax("i"):
      ...   mean(jnp.arange(4.0))
      Array([1.5], dtype=float32)
    """

    def __init__(self, axes: Hashable | Sequence[Hashable] | None = None) -> None:
        if axes is None:
            self._value: Any = True
        else:
            self._value = tuple(axes) if isinstance(axes, (tuple, list, set)) else (axes,)
        self._entered: list[Any] = []
        self._before: Any = None
        self._started = False

    def __enter__(self) -> "replace_lax":
        _register()
        context = _setting(self._value)
        context.__enter__()
        self._entered.append(context)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._entered.pop().__exit__(*exception)

    def start(self) -> "replace_lax":
        """Makes this the setting of all threads that are in no `with` of their own."""
        if self._started:
            raise RuntimeError("jax_cxl.replace_lax: start() was called before.")
        _register()
        self._before, self._started = _setting.get_global(), True
        _setting.set_global(self._value)
        return self

    def stop(self) -> None:
        """Puts back the setting that `start` found."""
        if not self._started:
            raise RuntimeError("jax_cxl.replace_lax: stop() without start().")
        self._started = False
        _setting.set_global(self._before)


def _applies(axes: Sequence[Hashable]) -> bool:
    setting = _setting.value
    return bool(axes) and (setting is True or (setting and set(axes) <= set(setting)))


def _named(axes: Any) -> tuple:
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    return tuple(axis for axis in axes if not isinstance(axis, int))


def _all_reduce(name: str, reduce_op: ReduceOp, reduce: Callable) -> Callable:
    def lower(ctx, x, *, axes, axis_index_groups=None):
        positions = tuple(axis for axis in axes if isinstance(axis, int))
        if positions:
            (out,) = ctx.avals_out
            inner = ctx.replace(avals_out=[out])
            (x,) = _lowering.local(inner, lambda v: reduce(v, positions), x)
            ctx = ctx.replace(avals_in=[out])
        return _lowering.collective(
            ctx,
            x,
            name=name,
            op=Op.ALL_REDUCE,
            axes=_named(axes),
            groups=axis_index_groups,
            reduce_op=reduce_op,
        )

    return lower


def _all_gather(
    ctx, x, *, all_gather_dimension, axis_name, axis_size, tiled, axis_index_groups=None
):
    dim = all_gather_dimension
    (out,) = ctx.avals_out
    shape = list(ctx.avals_in[0].shape)
    stacked = out.update(shape=(*shape[:dim], axis_size, *shape[dim:]))
    gathered = _lowering.collective(
        ctx.replace(avals_out=[stacked]),
        x,
        name="all_gather",
        op=Op.ALL_GATHER,
        axes=_named(axis_name),
        groups=axis_index_groups,
        result_blocks=dim,
    )
    return _reshape(ctx, stacked, out, gathered[0]) if tiled else gathered


def _reduce_scatter(
    ctx, x, *, scatter_dimension, axis_name, axis_size, tiled, axis_index_groups=None
):
    dim = scatter_dimension
    (aval,) = ctx.avals_in
    if tiled:
        shape = (*aval.shape[:dim], axis_size, aval.shape[dim] // axis_size, *aval.shape[dim + 1 :])
        (x,) = _reshape(ctx, aval, aval.update(shape=shape), x)
        ctx = ctx.replace(avals_in=[aval.update(shape=shape)])
    return _lowering.collective(
        ctx,
        x,
        name="psum_scatter",
        op=Op.REDUCE_SCATTER,
        axes=_named(axis_name),
        groups=axis_index_groups,
        operand_blocks=dim,
    )


def _all_to_all(ctx, x, *, split_axis, concat_axis, axis_name, axis_index_groups, tiled):
    # Whatever `tiled` says, the dimension that is split is divided, and the one along which
    # the parts are joined multiplied.
    (aval,), (out,) = ctx.avals_in, ctx.avals_out
    split, concat = split_axis % aval.ndim, concat_axis % aval.ndim
    n = _ranks.group_size(ctx, _named(axis_name), axis_index_groups)
    shape = [*aval.shape[:split], n, aval.shape[split] // n, *aval.shape[split + 1 :]]
    parts = aval.update(shape=tuple(shape))
    (x,) = _reshape(ctx, aval, parts, x)
    del shape[split]
    shape.insert(concat, n)
    joined = out.update(shape=tuple(shape))
    (y,) = _lowering.collective(
        ctx.replace(avals_in=[parts], avals_out=[joined]),
        x,
        name="all_to_all",
        op=Op.ALL_TO_ALL,
        axes=_named(axis_name),
        groups=axis_index_groups,
        operand_blocks=split,
        result_blocks=concat,
    )
    return _reshape(ctx, joined, out, y)


def _ragged_all_to_all(ctx, operand, output, *columns, axis_name, axis_index_groups):
    def stack(*columns):
        wide = any(column.dtype.itemsize == 8 for column in columns)
        return jnp.stack([c.astype(np.int64 if wide else np.int32) for c in columns])

    avals = ctx.avals_in[2:]
    table = jax.eval_shape(stack, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
    table = avals[0].update(shape=table.shape, dtype=table.dtype, weak_type=False)
    (values,) = _lowering.local(ctx.replace(avals_in=avals, avals_out=[table]), stack, *columns)
    return _lowering.ragged_all_to_all(
        ctx.replace(avals_in=[*ctx.avals_in[:2], table]),
        operand,
        output,
        values,
        axes=_named(axis_name),
        groups=axis_index_groups,
        alone=exchange_alone,
    )


def _ppermute(ctx, x, *, axis_name, perm):
    # JAX counts the ranks in the order of the mesh, whatever that of the names.
    axes = _named(axis_name)
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    if mesh is not None:
        axes = tuple(axis for axis in mesh.axis_names if axis in axes)
    n = _ranks.group_size(ctx, axes, None)
    source_of = {destination % n: source % n for source, destination in perm}
    if len(source_of) != len(perm) or len(set(source_of.values())) != len(perm):
        raise ValueError(f"ppermute sources and destinations must be unique, got {perm}.")
    return _lowering.collective(
        ctx,
        x,
        name="ppermute",
        op=Op.PERMUTE,
        axes=axes,
        sources=tuple(source_of.get(r, -1) for r in range(n)),
    )


def _pbroadcast(ctx, x, *, axis_name, source):
    return _lowering.collective(
        ctx, x, name="pbroadcast", op=Op.BROADCAST, axes=_named(axis_name), root=source
    )


def _reshape(ctx, aval, to, x):
    inner = ctx.replace(avals_in=[aval], avals_out=[to])
    return _lowering.local(inner, lambda v: lax.reshape(v, to.shape), x)


_psum = _all_reduce("psum", ReduceOp.SUM, lax.reduce_sum)
_pmax = _all_reduce("pmax", ReduceOp.MAX, lax.reduce_max)
_pmin = _all_reduce("pmin", ReduceOp.MIN, lax.reduce_min)

# By the names of JAX's primitives (jax/_src/lax/parallel.py). Not all versions have all.
_RULES: dict[str, Callable] = {
    "all_gather_p": _all_gather,
    "all_gather_invariant_p": _all_gather,
    "all_gather_reduced_p": _all_gather,
    "all_to_all_p": _all_to_all,
    "pbroadcast_p": _pbroadcast,
    "pmax_p": _pmax,
    "pmin_p": _pmin,
    "ppermute_p": _ppermute,
    "psum_p": _psum,
    "psum_invariant_p": _psum,
    "ragged_all_to_all_p": _ragged_all_to_all,
    "reduce_scatter_p": _reduce_scatter,
    "unreduced_pmax_p": _pmax,
    "unreduced_pmin_p": _pmin,
    "unreduced_psum_p": _psum,
    "unreduced_reduce_scatter_p": _reduce_scatter,
}

_register_lock = threading.Lock()
_registered = False


def _register() -> None:
    """Gives JAX's primitives their rules, on first use."""
    global _registered
    with _register_lock:
        if _registered:
            return
        for name, rule in _RULES.items():
            for primitive in _compat.lax_primitives(name):
                for platform in _lowering.PLATFORMS:
                    _register_one(primitive, rule, platform)
        _registered = True


def _register_one(primitive: Any, ours: Callable, platform: str) -> None:
    jax_rule = _compat.lowering_rule(primitive, platform)

    def lower(ctx, *operands, **params):
        axes = params["axes"] if "axes" in params else params["axis_name"]
        if _applies(_named(axes)):
            return ours(ctx, *operands, **params)
        if jax_rule is None:
            raise NotImplementedError(
                f"jax.lax has no {primitive.name} on {platform}. Use jax_cxl's, or name {axes} in"
                " jax_cxl.replace_lax."
            )
        return jax_rule(ctx, *operands, **params)

    mlir.register_lowering(primitive, lower, platform=platform, cacheable=False)
