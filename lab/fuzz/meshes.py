"""Random meshes and random shardings."""

import dataclasses
import math

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Mesh:
    """A mesh and its axes.

    Attributes:
      mesh: the mesh of JAX.
      axes: names and sizes of the axes.
    """

    mesh: jax.sharding.Mesh
    axes: dict[str, int]

    @property
    def text(self) -> str:
        """Describes the mesh: its axes and the order of its devices."""
        ids = [device.id for device in self.mesh.devices.flat]
        return f"mesh {self.axes} of devices {ids}"

    def sharding(self, spec: jax.P) -> jax.NamedSharding:
        """Returns the sharding of an array over the mesh."""
        return jax.NamedSharding(self.mesh, spec)


def random_mesh(rng: np.random.Generator, devices: list[jax.Device] | None = None) -> Mesh:
    """Returns a mesh over 2 to 8 devices (most often all of them) in random order."""
    devices = jax.devices() if devices is None else devices
    most = min(8, len(devices))
    count = most if rng.random() < 0.7 else int(rng.integers(2, most + 1))
    chosen = np.array(devices)[rng.permutation(len(devices))[:count]]
    sizes = _factors(rng, count)
    names = "abc"[: len(sizes)]
    kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
    mesh = jax.sharding.Mesh(chosen.reshape(sizes), tuple(names), axis_types=kinds)
    return Mesh(mesh, dict(zip(names, sizes, strict=True)))


def _factors(rng: np.random.Generator, count: int) -> list[int]:
    sizes = [1] * int(rng.integers(1, 4))
    for prime in (2, 2, 2, 3, 5, 7):
        if count % prime == 0:
            sizes[int(rng.integers(len(sizes)))] *= prime
            count //= prime
    sizes = [size for size in sizes if size > 1 or rng.random() < 0.2]
    return sizes or [1]


def random_spec(
    rng: np.random.Generator, axes: dict[str, int], shape: tuple[int, ...], even: bool
) -> jax.P:
    """Returns a random sharding: the axes along which each dimension of an array is divided.

    Args:
      rng: the generator of random numbers.
      axes: names and sizes of the axes of the mesh.
      shape: shape of the array.
      even: whether the size of each dimension has to be a multiple of the product of its axes'
        sizes.
    """
    parts: list[list[str]] = [[] for _ in shape]
    for axis in rng.permutation(list(axes)).tolist():
        fitting = [
            d
            for d, size in enumerate(shape)
            if not even or size % math.prod(axes[name] for name in [*parts[d], axis]) == 0
        ]
        if fitting and rng.random() < 0.85:
            parts[fitting[int(rng.integers(len(fitting)))]].append(axis)
    return jax.P(*(tuple(part) or None for part in parts))
