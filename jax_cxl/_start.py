"""The two halves of a collective on GPUs, as primitives: `start`, `done` and `tie`.

XLA on GPUs runs a program's kernels and custom calls one after another, in an order that it
chooses by what depends on what, and takes a custom call for a kernel. A collective that is to run
beside other work therefore takes three calls:

    y, token = start(x)           enqueues the collective on a stream of its own
    h = tie(token, h)             returns h: what uses it cannot be put in front of the start
    y = done(x, y, token, *after) the compute stream waits for the collective. `done` cannot be
                                  put in front of what computes `after`

All of them alias their results to their operands; nothing is copied. `done` takes x as well, so
that XLA does not reuse its memory while the collective reads it. Fences around each call keep XLA
from making one kernel of it and of a slice or an update of an array, which would undo both.

Between `start` and `done` the memory of y is unfinished, and only these calls know it. XLA copies
arrays freely where a loop, a branch or a program begins or ends, so that all calls of one
collective have to be in the same one. The lowering rules check that.

CPU devices need none of this: there a collective never blocks XLA, and the rules are trivial.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir
from jax.interpreters.mlir import ir

from jax_cxl import _lowering

DONE_TARGET = "jax_cxl_done"
TIE_TARGET = "jax_cxl_tie"

# x -> y, token: starts the collective `collective.bind(x, **params)`.
start_p = core.Primitive("start")
# x, y, token, *after -> y
done_p = core.Primitive("done")
# token, *h -> h
tie_p = core.Primitive("tie")
start_p.multiple_results = tie_p.multiple_results = True


def startable(equation: Any) -> bool:
    """Whether an equation is a collective with one operand and one result."""
    primitive = equation.primitive
    return (
        primitive in _lowering.RULES
        and not primitive.multiple_results
        and len(equation.invars) == 1
        and "axes" in equation.params
    )


def done(x: Any, y: Any, token: Any, after: Any) -> Any:
    """Waits for a collective, behind what computes the arrays of the pytree `after`."""
    return done_p.bind(x, y, token, *filter(_is_array, jax.tree.leaves(after)))


def tie(token: Any, h: Any) -> Any:
    """Returns the pytree h such that uses of its arrays come after the start."""
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


def _start_abstract_eval(x, *, collective, **params):
    y, effects = collective.abstract_eval(x, **params)
    token = x.update(shape=(1,), dtype=np.dtype(np.uint32), weak_type=False)
    return [y, token], effects


def _lower_start(ctx, x, *, collective, **params):
    return _lowering.RULES[collective](ctx, x, **params)


def _lower_start_cpu(ctx, x, *, collective, **params):
    inner = ctx.replace(avals_out=ctx.avals_out[:1])
    return [*_lowering.RULES[collective](inner, x, **params), _lowering.no_token()]


def _start_jvp(primals, tangents, *, collective, **params):
    outs = start_p.bind(*primals, collective=collective, **params)
    zeros = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    if type(tangents[0]) is ad.Zero:
        return outs, zeros
    rule = ad.primitive_jvps.get(collective)
    if rule is None:
        raise NotImplementedError(
            f"{collective} has no derivative, as in jax.lax: pass it jax.lax.stop_gradient(x)."
        )
    # Tangents are communicated at once, and so are, transposed, the cotangents. The rule's primal
    # result is dead code.
    _, y_dot = rule(primals, tangents, **params)
    return outs, [y_dot, zeros[1]]


def _batch_start(axis_data, operands, dims, *, collective, **params):
    # At once: whether a batched collective is one call, and which part of it is the result,
    # is known to the collective's rule only.
    rule = batching.fancy_primitive_batchers[collective]
    y, dim = rule(axis_data, operands, dims, **params)
    return [y, jnp.zeros(1, np.uint32)], [dim, None]


def _done_abstract_eval(x, y, token, *after):
    return y


def _lower_done(ctx, x, y, token, *after):
    start = _start_of(y)
    if start is None:
        _check_complete(token)
        return [y]
    layouts = start.attributes["operand_layouts"], start.attributes["result_layouts"]
    x_layout, y_layout = (_layout(of[0]) for of in layouts)
    call = jax.ffi.ffi_lowering(
        DONE_TARGET,
        # Those of the start: another one would make XLA copy what is unfinished.
        operand_layouts=[x_layout, y_layout, *map(_row_major, ctx.avals_in[3:])],
        result_layouts=[y_layout],
        operand_output_aliases={1: 0},
        # Also if nobody uses the result: the memory of y has to outlive the collective.
        has_side_effect=True,
    )
    x_aval, y_aval, _, *after_avals = ctx.avals_in
    (x,) = start.operands  # The memory that the collective reads, not one that x was sliced from.
    fenced = _lowering.fence(ctx, after_avals, *after)
    results = call(ctx.replace(avals_in=[x_aval, y_aval, *after_avals]), x, y, *fenced)
    return _lowering.fence(ctx, ctx.avals_out, *results)


def _done_jvp(primals, tangents):
    return done_p.bind(*primals), tangents[1]


def _batch_done(axis_data, operands, dims):
    x, y, token, *after = operands
    if dims[2] is not None:
        raise NotImplementedError(
            "A future of jax_cxl cannot be an argument of a function under jax.vmap on GPUs: call"
            " its done() first, or start the collective inside the function."
        )
    if dims[1] is not None:
        return y, dims[1]  # Started under this jax.vmap: complete.
    return done_p.bind(x, y, token, *after), None


def _tie_abstract_eval(token, *h):
    return list(h)


def _lower_tie(ctx, token, *h):
    if _start_of(token) is None:
        _check_complete(token)
        return list(h)
    call = jax.ffi.ffi_lowering(
        TIE_TARGET, operand_output_aliases={i + 1: i for i in range(len(h))}
    )
    fenced = _lowering.fence(ctx, ctx.avals_in[1:], *h)
    return _lowering.fence(ctx, ctx.avals_out, *call(ctx, token, *fenced))


def _tie_jvp(primals, tangents):
    return tie_p.bind(*primals), list(tangents[1:])


def _batch_tie(axis_data, operands, dims):
    token, *h = operands
    return (tie_p.bind(token, *h) if dims[0] is None else h), dims[1:]


def _start_of(value: Any) -> Any:
    """Returns the call that started the collective of a result or token; None for others.

    Only if it is in the region of the program that is being lowered.
    """
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.custom_call":
        return None
    if ir.StringAttr(owner.attributes["call_target_name"]).value != _lowering.START_TARGET:
        return None
    here = ir.InsertionPoint.current.block.owner
    return owner if owner.parent == here.operation else None


def _check_complete(token: Any) -> None:
    """Raises unless the token is that of a collective that was complete when it started."""
    owner = token.owner
    if not isinstance(owner, ir.Block) and owner.name == "stablehlo.constant":
        return
    raise NotImplementedError(
        "A future of jax_cxl crosses the boundary of a loop, a branch or a function on GPUs, where"
        " XLA may copy its unfinished result. Call done() in the same function, branch or iteration"
        " of a loop as the start; carry the result, not the future."
    )


def _layout(attribute: Any) -> tuple[int, ...]:
    return tuple(np.asarray(ir.DenseIntElementsAttr(attribute)).tolist())


def _row_major(aval: Any) -> tuple[int, ...]:
    return tuple(reversed(range(aval.ndim)))


def _register(primitive: Any, on_cpu: Any, on_cuda: Any) -> None:
    for platform, rule in (("cpu", on_cpu), ("cuda", on_cuda)):
        mlir.register_lowering(primitive, rule, platform=platform, cacheable=False)


start_p.def_effectful_abstract_eval(_start_abstract_eval)
_register(start_p, _lower_start_cpu, _lower_start)
ad.primitive_jvps[start_p] = _start_jvp
batching.fancy_primitive_batchers[start_p] = _batch_start

done_p.def_abstract_eval(_done_abstract_eval)
_register(done_p, lambda ctx, x, y, token, *after: [y], _lower_done)
ad.primitive_jvps[done_p] = _done_jvp
batching.fancy_primitive_batchers[done_p] = _batch_done

tie_p.def_abstract_eval(_tie_abstract_eval)
_register(tie_p, lambda ctx, token, *h: list(h), _lower_tie)
ad.primitive_jvps[tie_p] = _tie_jvp
batching.fancy_primitive_batchers[tie_p] = _batch_tie
