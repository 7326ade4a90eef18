"""Functions whose residuals wait for the backward pass in a store."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core

from jax_cxl import _compat, _core
from jax_cxl._store import arguments
from jax_cxl._store.store import Store, names_of
from jax_cxl._tier.residuals.primitives import Value, offload_p
from jax_cxl._tier.residuals.rings import Ring


def offload_residuals(
    f: Callable[..., Any],
    store: Store,
    *,
    names: str | Sequence[str] | Mapping[str, jax.sharding.NamedSharding | None],
    calls: int,
    policy: Callable[..., Any] | None = None,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """Returns a function that is `jax.checkpoint(f)`, but keeps named values in a store.

    In the forward pass, each value of a name in `names`, outside of `jax.lax.while_loop`, goes to
    the memory of the store. In the backward pass it comes back unchanged, and everything else is
    computed again. The devices keep 16 bytes for each value. If `f` is a layer, name at least its
    input: otherwise `jax.lax.scan` keeps the inputs of all layers on the device.

    The memory is taken when a program is lowered, for each device of this process, and is given
    back when `f` and its programs are gone. Other users of the store cannot read this memory.

    Args:
      f: a function of trees of arrays, such as the body of a `jax.lax.scan`. It names values by
        `jax.ad_checkpoint.checkpoint_name`.
      store: the store.
      names: names of the values that are offloaded. In a program over several devices, outside of
        `jax.shard_map`, a dict with the sharding of each. The mesh of each sharding contains all
        devices of the program.
      calls: how many calls of `f` lie between the first call in a forward pass and the end of its
        backward pass. This is usually the number of layers. The store has room for the values of
        these calls.
      policy: as for `jax.checkpoint`: which other values stay on the device.
      prevent_cse: as for `jax.checkpoint`. Within `jax.lax.scan` False is as good, and faster.
      static_argnums: as for `jax.checkpoint`.

    Returns:
      The function. It can be called under `jax.jit`, `jax.shard_map` and `jax.vmap`, and be
      differentiated once, in reverse mode. `jax.vmap` of its gradient raises NotImplementedError.

    Raises:
      TypeError, ValueError: an argument is wrong. When the function is called: `f` names no value
        by one of `names`, or a value cannot be offloaded.
      PoolTooSmallError: when a program is lowered: the store does not have the memory. The message
        says how much is needed. When a program runs: `calls` is too small.

    Example:
      >>> def layer(x, w):
      ...   x = jax.ad_checkpoint.checkpoint_name(x, "x")
      ...   return x + jax.nn.gelu(x @ w["in"]) @ w["out"], None
      >>> store = jax_cxl.Store("shm:activations?size=1GiB")
      >>> body = jax_cxl.offload_residuals(layer, store, names="x", calls=24, prevent_cse=False)
      >>> loss = lambda ws, x: jnp.mean(jax.lax.scan(body, x, ws)[0] ** 2)
      >>> gradients = jax.jit(jax.grad(loss))(ws, x)
    """
    if not callable(f):
        raise TypeError(f"f={f!r} must be a function")
    names_of(store)
    count = arguments.whole("calls", calls)
    if count < 1:
        raise ValueError(f"calls={calls} must be at least 1")
    if isinstance(static_argnums, int):
        static_argnums = (static_argnums,)
    offloaded = _Offloaded(f, store, _shardings_of(names), count)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        static = {n + len(args) if n < 0 else n for n in static_argnums}
        dynamic = [x for n, x in enumerate(args) if n not in static]

        def with_dynamic(dynamic: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            left = iter(dynamic)
            return f(*(x if n in static else next(left) for n, x in enumerate(args)), **kwargs)

        flat, structure = jax.tree.flatten((dynamic, kwargs))
        unflatten = functools.partial(jax.tree.unflatten, structure)
        run, out = offloaded.prepared(lambda *flat: with_dynamic(*unflatten(flat)), flat)
        made = jax.checkpoint(run, policy=policy, prevent_cse=prevent_cse)(*flat)
        return jax.tree.unflatten(out, made)

    return call


def _shardings_of(names: Any) -> dict[str, jax.sharding.NamedSharding | None]:
    if isinstance(names, str):
        names = (names,)
    found = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names)
    if not found:
        raise ValueError("names must have at least one name")
    for name, sharding in found.items():
        if not isinstance(name, str):
            raise TypeError(f"each of the names must be a str, got {name!r}")
        if sharding is not None and not isinstance(sharding, jax.sharding.NamedSharding):
            raise TypeError(f"the sharding of {name!r} is {sharding!r}: use a jax.NamedSharding")
    return found


@dataclasses.dataclass
class _Offloaded:
    """A function whose values are offloaded, their shardings by name, and their memory."""

    f: Callable[..., Any]
    store: Store
    shardings: dict[str, jax.sharding.NamedSharding | None]
    calls: int
    _rings: list[Ring] = dataclasses.field(default_factory=list)

    def prepared(self, f: Callable[..., Any], flat: Sequence[Any]) -> tuple[Any, Any]:
        """Returns a function that marks the named values, and the structure of its results."""
        closed, out = jax.make_jaxpr(f, return_shape=True)(*flat)
        found = [each for each in _named(closed.jaxpr) if each[0] in self.shardings]
        if missing := self.shardings.keys() - {name for name, *_ in found}:
            raise ValueError(
                f"{getattr(self.f, '__name__', self.f)} names no value {min(missing)!r}: name it"
                " with jax.ad_checkpoint.checkpoint_name, outside of jax.lax.while_loop"
            )
        ring = self._ring_for(found)
        numbers = iter(range(len(found)))

        def replaced(eqn: Any, name: str) -> Any:
            if name not in self.shardings:
                return eqn
            value = Value(name, next(numbers), ring, self._sharding_of(name, eqn.outvars[0].aval))
            return eqn.replace(primitive=offload_p, params={"value": value})

        marked = closed.replace(jaxpr=_replace(closed.jaxpr, replaced))
        return core.jaxpr_as_fun(marked), jax.tree.structure(out)

    def _sharding_of(self, name: str, aval: Any) -> jax.sharding.NamedSharding | None:
        """Returns the sharding that the user gave, or that of the type if axes are explicit."""
        if self.shardings[name] is None and aval.sharding.mesh.explicit_axes:
            sharding: jax.sharding.NamedSharding = aval.sharding
            return sharding
        return self.shardings[name]

    def _ring_for(self, found: Sequence[tuple[str, Any, int]]) -> Ring:
        """Returns a ring that is large enough for the values of all calls."""
        unit = _core.RESIDUAL_ALIGNMENT
        needed = 0
        for name, aval, times in found:
            size = _bytes_of(aval, self._sharding_of(name, aval))
            needed += self.calls * times * -(-size // unit) * unit
        for ring in self._rings:
            if ring.bytes >= needed:
                return ring
        texts = sorted(self.shardings)
        what = (
            f"the residuals {', '.join(texts)} of {self.calls} calls need {needed} bytes for each"
            " device"
        )
        self._rings.append(Ring(names_of(self.store).made(), needed, what))
        return self._rings[-1]


def _named(jaxpr: Any, calls: int = 1) -> Iterator[tuple[str, Any, int]]:
    """Yields name and type of each named value, and how many times the function computes it."""
    for eqn in jaxpr.eqns:
        if (name := _compat.checkpoint.name_of(eqn)) is not None:
            yield name, eqn.outvars[0].aval, calls
        inner = calls * eqn.params["length"] if eqn.primitive.name == "scan" else calls
        for each in _inner(eqn):
            yield from _named(each, inner)


def _replace(jaxpr: Any, replaced: Callable[[Any, str], Any]) -> Any:
    """Returns a jaxpr with other equations in place of those that name values."""

    def of(x: Any) -> Any:
        if isinstance(x, core.ClosedJaxpr) and not isinstance(x, core.Jaxpr):
            return x.replace(jaxpr=_replace(x.jaxpr, replaced))
        if isinstance(x, core.Jaxpr):
            return _replace(x, replaced)
        if isinstance(x, tuple | list):
            return type(x)(map(of, x)) if any(map(_is_jaxpr, x)) else x
        return x

    eqns = []
    for eqn in jaxpr.eqns:
        if (name := _compat.checkpoint.name_of(eqn)) is not None:
            eqns.append(replaced(eqn, name))
        elif any(True for _ in _inner(eqn)):
            eqns.append(eqn.replace(params={key: of(x) for key, x in eqn.params.items()}))
        else:
            eqns.append(eqn)
    return jaxpr.replace(eqns=eqns)


def _inner(eqn: Any) -> Iterator[Any]:
    # A while loop has no residuals: JAX computes its values again.
    for x in () if eqn.primitive.name == "while" else eqn.params.values():
        for each in x if isinstance(x, tuple | list) else (x,):
            if _is_jaxpr(each):
                yield getattr(each, "jaxpr", each)


def _is_jaxpr(x: Any) -> bool:
    return isinstance(x, core.Jaxpr | core.ClosedJaxpr)


def _bytes_of(aval: Any, sharding: jax.sharding.Sharding | None) -> int:
    """Returns the bytes of a value on each device."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        raise TypeError(
            f"an array of {aval.dtype} cannot be offloaded: name its key data (jax.random.key_data)"
            " instead"
        )
    bits = jax.dtypes.itemsize_bits(aval.dtype)
    if bits % 8:
        raise TypeError(
            f"an array of {aval.dtype} cannot be offloaded: convert it to elements of whole bytes,"
            " such as int8, and name the result instead"
        )
    shape = aval.shape if sharding is None else sharding.shard_shape(aval.shape)
    return math.prod(shape) * bits // 8
