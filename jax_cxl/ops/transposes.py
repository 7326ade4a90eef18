"""Transposes of operations that are each other's transpose, such as all_gather and psum_scatter.

They are here because each needs the primitives of both operations. The transpose of every other
operation is registered beside its primitive.
"""

from jax import lax
from jax.interpreters import ad

from jax_cxl._lowering.primitives import named_axis
from jax_cxl.ops.all_gather import all_gather_p
from jax_cxl.ops.psum_scatter import psum_scatter_p
from jax_cxl.ops.rooted.broadcast import broadcast_p
from jax_cxl.ops.rooted.gather import gather_p
from jax_cxl.ops.rooted.reduce import reduce_p
from jax_cxl.ops.rooted.scatter import scatter_p


def _all_gather(ct, x, *, axes, groups, size, dim, invariant, levels):
    if invariant:
        # All ranks hold the same cotangent of the whole result. Each rank takes its own part.
        return [lax.dynamic_index_in_dim(ct, lax.axis_index(axes), dim, keepdims=False)]
    ct = named_axis.vary(ct, axes)
    return [psum_scatter_p.bind(ct, axes=axes, groups=groups, size=size, dim=dim, levels=levels)]


def _psum_scatter(ct, x, *, axes, **params):
    return [all_gather_p.bind(named_axis.vary(ct, axes), axes=axes, invariant=False, **params)]


def _broadcast(ct, x, *, axes, root, levels):
    ct = reduce_p.bind(named_axis.vary(ct, axes), axes=axes, root=root)
    return [named_axis.only_at(ct, axes, root)]


def _reduce(ct, x, *, axes, root):
    return [broadcast_p.bind(named_axis.vary(ct, axes), axes=axes, root=root, levels=None)]


def _gather(ct, x, *, axes, **params):
    return [scatter_p.bind(named_axis.vary(ct, axes), axes=axes, **params)]


def _scatter(ct, x, *, axes, root, **params):
    ct = gather_p.bind(named_axis.vary(ct, axes), axes=axes, root=root, **params)
    return [named_axis.only_at(ct, axes, root)]


_TRANSPOSES = {
    all_gather_p: _all_gather,
    psum_scatter_p: _psum_scatter,
    broadcast_p: _broadcast,
    reduce_p: _reduce,
    gather_p: _gather,
    scatter_p: _scatter,
}
for _primitive, _transpose in _TRANSPOSES.items():
    ad.deflinear2(_primitive, _transpose)
