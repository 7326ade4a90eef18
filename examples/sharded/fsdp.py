"""Fully sharded data parallelism over one mesh axis, in a page.

A model is a handful of *units* (here: each layer, and the embedding with the final norm). All the
parameters of a unit lie one after another in one flat vector, padded, and every device keeps an
equal piece of it:

    unit       {"norm": (64,), "up": (64, 256), ...}     what the model's code sees
    flat       (size,) + padding                         exists while the unit computes
    shard      (padded / devices,)                       what a device owns: float32, for good

`Unit.gather` turns a shard into the unit with one `all_gather`. The transpose of `all_gather` is
`psum_scatter`, so differentiating through `gather` leaves each device with the gradient of its own
shard, already summed over all devices. The optimizer then works on shards and never communicates.

One flat vector per unit means one large collective instead of a dozen small ones, and the padding
means that any number of devices divides it.
"""

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from common.trainer import AXIS
from jax import lax
from jax.sharding import Mesh, PartitionSpec

# Every device count up to 8 divides 840, so the padded size, and with it a checkpoint, is the same
# for all of them. The factor 32 makes a shard a whole number of 64-byte cache lines in float32 and
# in bfloat16: no two devices ever touch the same line.
_PADDING = 840 * 32

Tree = Any


class Collectives(Protocol):
    """The functions of `jax.lax` that FSDP needs; `jax_cxl` has them too."""

    def all_gather(self, x: jax.Array, axis_name: str, *, tiled: bool) -> jax.Array: ...

    def psum(self, x: jax.Array, axis_name: str) -> jax.Array: ...


def device_mesh() -> Mesh:
    """Returns a mesh of one axis, `AXIS`, over all devices of all processes."""
    return Mesh(np.asarray(jax.devices()), (AXIS,))


class Unit:
    """The layout of parameters that are gathered together.

    Attributes:
      size: number of parameters.
      padded: length of the flat vector, a multiple of the number of devices.
    """

    def __init__(self, template: Tree, devices: int, copies: int = 1):
        """Lays out a unit.

        Args:
          template: pytree of arrays or `jax.ShapeDtypeStruct`, only shapes are used.
          devices: number of devices.
          copies: number of devices that have the same shard (levels.py).
        """
        leaves, self._structure = jax.tree.flatten(template)
        self._shapes = [leaf.shape for leaf in leaves]
        self.size = sum(math.prod(shape) for shape in self._shapes)
        multiple = math.lcm(_PADDING, devices)
        self.padded = -(-self.size // multiple) * multiple
        self._shards = devices // copies
        self._shard = self.padded // self._shards

    def shard(self, tree: Tree) -> jax.Array:
        """Returns this device's shard of a unit that every device has whole, without communication.

        Args:
          tree: the unit's parameters, float32.

        Returns:
          Its shard, (padded / devices,), float32.
        """
        flat = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
        flat = jnp.pad(flat, (0, self.padded - self.size))
        index = lax.axis_index(AXIS) % self._shards
        return lax.dynamic_slice(flat, [index * self._shard], [self._shard])

    def gather(self, shard: jax.Array, collectives: Collectives, dtype: jnp.dtype) -> Tree:
        """Assembles the unit from the shards of all devices.

        Args:
          shard: (padded / devices,), float32.
          collectives: `jax.lax` or `jax_cxl`.
          dtype: dtype of the computation. The cast comes first, so that bfloat16 also halves the
            bytes of the communication, of parameters and of gradients.

        Returns:
          The unit's parameters in `dtype`.
        """
        return self.unpack(collectives.all_gather(shard.astype(dtype), AXIS, tiled=True))

    def unpack(self, flat: jax.Array) -> Tree:
        """Returns the unit whose parameters lie in a flat vector, (padded,)."""
        # The transpose of `split` is one concatenation. The transpose of slices would be a sum of
        # mostly empty vectors of full length, which jaxlib 0.10.2 compiles to wrong values on CPU
        # in some programs.
        sizes = [math.prod(shape) for shape in self._shapes]
        parts = lax.split(flat, [*sizes, self.padded - self.size])[:-1]
        leaves = [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return jax.tree.unflatten(self._structure, leaves)


def partition(tree: Tree) -> Tree:
    """Returns the `PartitionSpec` of each leaf. The last dimension, if there is one, is sharded.

    Args:
      tree: training state. Its leaves are shards, or stacks of the shards of several units; the
        optimizer's moments, which have the same shapes; and step counters.
    """

    def spec(leaf: Any) -> PartitionSpec:
        return PartitionSpec(*[None] * (leaf.ndim - 1), AXIS) if leaf.ndim else PartitionSpec()

    return jax.tree.map(spec, tree)
