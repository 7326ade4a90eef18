"""The primitives of a collective in two halves on GPUs: `start`, `done` and `tie`.

On GPUs XLA runs the kernels and custom calls of a program one after another, in any order that
respects data dependencies. It treats a custom call like a kernel. So a collective that runs during
other work needs three calls:

    y, token = start(x)            enqueues the collective on a stream of its own
    h = tie(token, h)              returns h: XLA cannot move uses of it before the start
    y = done(x, y, token, *after)  the compute stream waits for the collective: XLA cannot move this
                                   before the computation of `after`

All calls alias their results to their operands, so nothing is copied. `done` takes x too, so that
XLA does not reuse the memory of x while the collective reads it. Fences around each call keep XLA
from fusing the call with a slice or an update of an array, which would break the aliasing.

Between `start` and `done` the memory of y is unfinished, and XLA does not know that. XLA copies
arrays freely at the boundaries of loops, branches and programs. So all calls of one collective have
to be in the same loop body, branch or program. The lowering rules check that.

On CPU devices a collective never blocks XLA, so the lowering rules are trivial there.

Rows of a table in a store (jax_cxl/_table/gather.py) are started in the same way, as if they came
from a collective. Their calls have targets of their own, because they need no job.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir
from jax.interpreters.mlir import ir

from jax_cxl import _compat
from jax_cxl._lowering import contract
from jax_cxl._lowering.primitives import local_lowering, lowering

# *xs -> y, token: starts the collective `collective.bind(*xs, **params)`.
start_p = _compat.tracing.Primitive("start")
# *xs, y, token, *after -> y, where `operands` is the number of xs
done_p = _compat.tracing.Primitive("done")
# token, *h -> h
tie_p = _compat.tracing.Primitive("tie")
start_p.multiple_results = tie_p.multiple_results = True

# Targets of calls that start something -> targets of calls that wait for it.
_DONE_TARGETS = {
    contract.START_TARGET: contract.DONE_TARGET,
    contract.START_ROWS_TARGET: contract.DONE_TARGET,
    contract.START_TABLE_TARGET: contract.TABLE_DONE_TARGET,
}


def startable(equation: Any) -> bool:
    """Returns whether an equation can be started: as a collective, or as a read of table rows.

    A collective that writes to an operand cannot be started.
    """
    primitive = equation.primitive
    return (
        primitive in lowering.RULES
        and not primitive.multiple_results
        and ("axes" in equation.params or primitive.name == "table_take")
        and primitive.name != "ragged_all_to_all"
    )


def done(xs: tuple, y: Any, token: Any, after: Any) -> Any:
    """Returns y, complete. The wait for it comes after the computation of the arrays in `after`."""
    after = filter(_is_array, jax.tree.leaves(after))
    return done_p.bind(*xs, y, token, *after, operands=len(xs))


def tie(token: Any, h: Any) -> Any:
    """Returns the pytree h. Uses of the returned arrays come after the start that made `token`."""
    leaves, structure = jax.tree.flatten(h)
    places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
    if places:
        tied = tie_p.bind(token, *(leaves[i] for i in places))
        for i, leaf in zip(places, tied, strict=True):
            leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not jax.dtypes.issubdtype(
        leaf.dtype, jax.dtypes.extended
    )


def _start_abstract_eval(*xs, collective, **params):
    y, effects = collective.abstract_eval(*xs, **params)
    token = xs[0].update(shape=(1,), dtype=np.dtype(np.uint32), weak_type=False)
    return [y, token], effects


def _lower_start(ctx, *xs, collective, **params):
    y, *token = lowering.RULES[collective](ctx, *xs, **params)
    # A collective that is complete at once has no token. A constant takes the place of the token,
    # so that `_check_complete` recognizes this case.
    return [y, *(token or [mlir.ir_constant(np.zeros(1, np.uint32))])]


def _start_jvp(primals, tangents, *, collective, **params):
    outs = start_p.bind(*primals, collective=collective, **params)
    zeros = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    if all(type(t) is ad.Zero for t in tangents):
        return outs, zeros
    rule = ad.primitive_jvps.get(collective)
    if rule is None:
        raise NotImplementedError(
            f"{collective} has no derivative, as in jax.lax: pass it jax.lax.stop_gradient(x)."
        )
    # The collective of the tangents runs at once, and so does its transpose. The primal result of
    # the rule is dead code.
    _, y_dot = rule(primals, tangents, **params)
    return outs, [y_dot, zeros[1]]


def _batch_start(axis_data, operands, dims, *, collective, **params):
    # Run the collective at once. Only its own batching rule knows whether the batched collective is
    # still a single call, and which part of its output is the result.
    rule = batching.fancy_primitive_batchers[collective]
    y, dim = rule(axis_data, operands, dims, **params)
    return [y, jnp.zeros(1, np.uint32)], [dim, None]


def _lower_done(ctx, *values, operands):
    y, token, *after = values[operands:]
    start = _start_of(y)
    if start is None:
        _check_complete(token)
        return [y]
    # Take the memory that the collective itself uses. It consists of the operands of the start (the
    # xs here may be slices of other arrays), and of the scratch memory, which follows the result.
    scratch = list(start.results)[1:-1]
    of_operands, of_results = (
        list(map(_layout, start.attributes[f"{side}_layouts"])) for side in ("operand", "result")
    )
    scratch_avals = [
        jax.core.ShapedArray(tuple(ir.RankedTensorType(value.type).shape), np.dtype(np.uint8))
        for value in scratch
    ]
    after_avals = ctx.avals_in[operands + 2 :]
    fenced = local_lowering.fence(ctx, after_avals, *after)
    row_major = [lowering.layout(aval.ndim, None) for aval in after_avals]
    kept: list[Any] = [
        *zip(start.operands, ctx.avals_in[:operands], of_operands, strict=True),
        *zip(scratch, scratch_avals, of_results[1:-1], strict=True),
        *zip(fenced, after_avals, row_major, strict=True),
    ]
    kept.insert(1, (y, ctx.avals_in[operands], of_results[0]))
    values, avals, layouts = zip(*kept, strict=True)
    call = jax.ffi.ffi_lowering(
        _DONE_TARGETS[_target(start)],
        # Ask for the layouts of the start: with other layouts XLA would copy the unfinished result.
        operand_layouts=layouts,
        result_layouts=of_results[:1],
        operand_output_aliases={1: 0},
        # `done` has to run even if nothing uses the result: until then y must keep its memory.
        has_side_effect=True,
    )
    results = call(ctx.replace(avals_in=avals), *values)
    return local_lowering.fence(ctx, ctx.avals_out, *results)


def _batch_done(axis_data, values, dims, *, operands):
    y, token, *after = values[operands:]
    y_dim, token_dim = dims[operands : operands + 2]
    if token_dim is not None:
        raise NotImplementedError(
            "A future of jax_cxl cannot be an argument of a function under jax.vmap on GPUs: call"
            " its done() first, or start the collective inside the function."
        )
    if y_dim is not None:
        return y, y_dim  # A collective that was started under this jax.vmap is complete.
    return done_p.bind(*values[:operands], y, token, *after, operands=operands), None


def _lower_tie(ctx, token, *h):
    if _start_of(token) is None:
        _check_complete(token)
        return list(h)
    call = jax.ffi.ffi_lowering(
        contract.TIE_TARGET, operand_output_aliases={i + 1: i for i in range(len(h))}
    )
    fenced = local_lowering.fence(ctx, ctx.avals_in[1:], *h)
    return local_lowering.fence(ctx, ctx.avals_out, *call(ctx, token, *fenced))


def _batch_tie(axis_data, operands, dims):
    token, *h = operands
    return (tie_p.bind(token, *h) if dims[0] is None else h), dims[1:]


def _start_of(value: Any) -> Any:
    """Returns the call that started the collective of this result or token.

    Returns None for other values, and if the call is not in the region that is being lowered.
    """
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.custom_call":
        return None
    if _target(owner) not in _DONE_TARGETS:
        return None
    here = ir.InsertionPoint.current.block.owner
    return owner if owner.parent == here.operation else None


def _target(call: Any) -> str:
    target: str = ir.StringAttr(call.attributes["call_target_name"]).value
    return target


def _check_complete(token: Any) -> None:
    """Raises an error unless the token's collective was already complete at its start."""
    owner = token.owner
    if not isinstance(owner, ir.Block) and owner.name == "stablehlo.constant":
        return
    raise NotImplementedError(
        "A future of jax_cxl crosses the boundary of a loop, a branch or a function. On GPUs, XLA"
        " may copy its unfinished result there. Call done() in the same function, branch or loop"
        " iteration as the start, and carry the result instead of the future."
    )


def _layout(attribute: Any) -> tuple[int, ...]:
    return tuple(np.asarray(ir.DenseIntElementsAttr(attribute)).tolist())


def _register(primitive: Any, on_cpu: Any, on_cuda: Any) -> None:
    for platform, rule in (("cpu", on_cpu), ("cuda", on_cuda)):
        mlir.register_lowering(primitive, rule, platform=platform, cacheable=False)


@start_p.def_impl
def _start_alone(*xs, collective, **params):
    """Runs a start outside of programs, where each call completes before the next one."""
    return [collective.bind(*xs, **params), jnp.zeros(1, np.uint32)]


start_p.def_effectful_abstract_eval(_start_abstract_eval)
_register(
    start_p,
    lambda ctx, *xs, **params: _lower_start(
        ctx.replace(avals_out=ctx.avals_out[:1]), *xs, **params
    ),
    _lower_start,
)
ad.primitive_jvps[start_p] = _start_jvp
batching.fancy_primitive_batchers[start_p] = _batch_start

done_p.def_impl(lambda *values, operands: values[operands])
done_p.def_abstract_eval(lambda *values, operands: values[operands])
_register(done_p, lambda ctx, *values, operands: [values[operands]], _lower_done)
ad.primitive_jvps[done_p] = lambda primals, tangents, *, operands: (
    done_p.bind(*primals, operands=operands),
    tangents[operands],
)
batching.fancy_primitive_batchers[done_p] = _batch_done

tie_p.def_impl(lambda token, *h: list(h))
tie_p.def_abstract_eval(lambda token, *h: list(h))
_register(tie_p, lambda ctx, token, *h: list(h), _lower_tie)
ad.primitive_jvps[tie_p] = lambda primals, tangents: (tie_p.bind(*primals), list(tangents[1:]))
batching.fancy_primitive_batchers[tie_p] = _batch_tie
