"""The primitives that put residuals into a ring, and get them back.

`offload_p` marks a value, and does nothing else. If `jax.checkpoint` splits a function into a
forward and a backward pass, and would compute the value again, then the forward pass gets `put_p`,
the backward pass gets `get_p`, and only a handle is kept between them.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from jax_cxl import _compat
from jax_cxl._job import lifecycle, platforms
from jax_cxl._lowering import contract
from jax_cxl._lowering.primitives import lowering
from jax_cxl._tier.residuals.rings import Ring

_HANDLE = 4  # words of 32 bits: tier::Handle


@dataclasses.dataclass(frozen=True)
class Value:
    """A value of a function that is offloaded.

    The sharding is None in a program for one device and under `jax.shard_map`.
    """

    name: str
    number: int
    ring: Ring
    sharding: jax.sharding.NamedSharding | None

    @property
    def shards(self) -> int:
        """How many devices have a part of it."""
        return 1 if self.sharding is None else self.sharding.mesh.size


# Operand and result: the value.
offload_p = core.Primitive("offload_residual")
# Operand: the value. Results: the value, and a handle for each shard.
put_p = core.Primitive("put_residual")
put_p.multiple_results = True
# Operand: the handles. Result: the value.
get_p = core.Primitive("get_residual")


def _split(saveable, unknown, _, eqn):
    """Splits an equation of `offload_p` into an equation for each of the two passes."""
    if unknown[0]:
        return None, eqn, [True], [True], []
    (x,), (out,), value = eqn.invars, eqn.outvars, eqn.params["value"]
    if _compat.checkpoint.is_saveable(saveable(eqn.primitive, x.aval, **eqn.params)):
        return eqn, None, [False], [False], []
    *_, handle_aval = _put_avals(x.aval, value=value)
    handle = core.Var(handle_aval)
    put = core.new_jaxpr_eqn([x], [out, handle], put_p, {"value": value}, core.no_effects)
    params = {"value": value, "aval": out.aval}
    get = core.new_jaxpr_eqn([handle], [out], get_p, params, core.no_effects)
    return put, get, [False], [True], [handle]


def _put_avals(x, *, value):
    like: dict[str, Any] = {"shape": (value.shards, _HANDLE), "dtype": np.dtype(np.uint32)}
    if value.sharding is not None:
        spec = jax.P(value.sharding.mesh.axis_names)
        like |= {"sharding": x.sharding.update(spec=spec)} if x.sharding.mesh.axis_names else {}
    return x, x.update(weak_type=False, **like)


def _lower_put(platform: platforms.Platform, ctx, x, *, value):
    if value.sharding is not None:
        local = dataclasses.replace(value, sharding=None)
        put = _on_shards(lambda x: put_p.bind(x, value=local)[1], value.sharding, puts=True)
        return mlir.lower_fun(lambda x: [x, put(x)], multiple_results=True)(ctx, x)
    _prepare(platform, ctx, value)
    call = jax.ffi.ffi_lowering(contract.PUT_RESIDUAL_TARGET)
    (handle,) = call(ctx.replace(avals_out=ctx.avals_out[1:]), x, **_attributes(value))
    return [x, handle]


def _lower_get(platform: platforms.Platform, ctx, handle, *, value, aval):
    if value.sharding is not None:
        local = dataclasses.replace(value, sharding=None)
        shape = value.sharding.shard_shape(aval.shape)
        part = jax.core.ShapedArray(shape, aval.dtype, weak_type=aval.weak_type)
        bind = functools.partial(get_p.bind, value=local, aval=part)
        get = _on_shards(bind, value.sharding, puts=False)
        return mlir.lower_fun(get, multiple_results=False)(ctx, handle)
    _prepare(platform, ctx, value)
    call = jax.ffi.ffi_lowering(contract.GET_RESIDUAL_TARGET)
    return call(ctx, handle, **_attributes(value))


def _attributes(value: Value) -> dict[str, Any]:
    return {"ring": np.int64(value.ring.number), "value": np.int32(value.number)}


def _prepare(platform: platforms.Platform, ctx, value: Value) -> None:
    _check_one_device(ctx, value)
    lifecycle.register_handlers(platform)
    value.ring.use(platform)
    ctx.module_context.add_keepalive(value.ring)


def _check_one_device(ctx, value: Value) -> None:
    """Checks that each device runs the call with its own part of the value."""
    context = ctx.module_context.axis_context
    manual = getattr(context, "manual_axes", None)
    if manual is None:
        several = getattr(context, "num_devices", 1) > 1
    else:
        shape = context.mesh.shape
        several = any(shape[axis] > 1 for axis in set(shape) - set(manual))
    if several:
        raise ValueError(
            f"the program runs on several devices, and XLA does not say how {value.name!r} is"
            " divided between them: give its sharding, names={"
            f"{value.name!r}: jax.NamedSharding(mesh, spec)}}"
        )


def _on_shards(function: Any, sharding: jax.sharding.NamedSharding, *, puts: bool) -> Any:
    """Returns a function that puts or gets the part of a sharded value on each device."""
    specs = sharding.spec, jax.P(sharding.mesh.axis_names)  # of the value and of its handles
    of_operand, of_result = specs if puts else specs[::-1]
    return jax.shard_map(
        function,
        mesh=sharding.mesh,
        in_specs=of_operand,
        out_specs=of_result,
        check_vma=False,
    )


def _offload_jvp(primals, tangents, *, value):
    return offload_p.bind(*primals, value=value), *tangents


def _put_jvp(primals, tangents, *, value):
    if not isinstance(tangents[0], ad.Zero):
        raise NotImplementedError(
            f"{value.name!r} is offloaded by a function whose gradient is differentiated once more:"
            " only first derivatives can be computed. Use jax.checkpoint instead of"
            " jax_cxl.offload_residuals"
        )
    out = put_p.bind(*primals, value=value)
    return out, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in out]


def _get_jvp(primals, _, **params):
    out = get_p.bind(*primals, **params)
    return out, ad.Zero(jax.typeof(out).to_tangent_aval())


def _offload_batch(operands, dims, *, value):
    return offload_p.bind(*operands, value=value), dims[0]


def _refuse_batch(operands, dims, *, value, **_):
    raise NotImplementedError(
        f"jax.vmap cannot map the gradient of a function that offloads {value.name!r}: take the"
        " gradient of the mapped function instead, jax.grad(... jax.vmap(f) ...)"
    )


offload_p.def_impl(lambda x, *, value: x)
offload_p.def_abstract_eval(lambda x, *, value: x)
put_p.def_abstract_eval(_put_avals)
get_p.def_abstract_eval(lambda handle, *, value, aval: aval)
lowering.run_alone(put_p, "value")
lowering.run_alone(get_p, "value", "aval")
mlir.register_lowering(offload_p, lambda ctx, x, *, value: [x])
for _platform in platforms.ALL:
    for _primitive, _lower in ((put_p, _lower_put), (get_p, _lower_get)):
        mlir.register_lowering(
            _primitive,
            functools.partial(_lower, _platform),
            platform=_platform.name,
            cacheable=False,
        )
ad.primitive_jvps[offload_p] = _offload_jvp
ad.primitive_jvps[put_p] = _put_jvp
ad.primitive_jvps[get_p] = _get_jvp
batching.primitive_batchers[offload_p] = _offload_batch
batching.primitive_batchers[put_p] = _refuse_batch
batching.primitive_batchers[get_p] = _refuse_batch
_compat.checkpoint.register_rule(offload_p, _split)
