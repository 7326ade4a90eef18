"""Trees of arrays that go to a store, and come back when they are needed."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_cxl import errors
from jax_cxl._store import agreement, following
from jax_cxl._store.memory.layout import Records
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.store import Store, names_of
from jax_cxl._tier import arrays, fetching
from jax_cxl._tier.arrays import Spec


@dataclasses.dataclass(frozen=True)
class OffloadedArray(Spec):
    """An array in a store. `jax_cxl.fetch` returns the array.

    Attributes:
      shape: its shape.
      dtype: its dtype.
      sharding: its original sharding, which it gets again.
    """

    _version: "_Version" = dataclasses.field(kw_only=True, repr=False)


@dataclasses.dataclass(frozen=True, eq=False)
class _Version:
    """A version of a name in a store.

    Attributes:
      origin: the identity of the name's entry in the catalog, and the token of the save. A name
        that was deleted and used again has other versions of the same number, with another origin.
    """

    store: Store
    name: str
    version: int
    origin: tuple[int, int]

    @functools.cached_property
    def found(self) -> tuple[Section, Records]:
        """The section of the name, and the records of the version. Waits until it is whole."""
        self.store.flush(self.name)
        devices = names_of(self.store).devices()
        section, found = Section.find_versions(devices, self.name) or (None, [])
        for records in found:
            if section is None or records[0].version != self.version:
                continue
            if (section.entry.identity, records[0].token) == self.origin:
                return section, records
        raise self.gone()

    @functools.cached_property
    def reader(self) -> Reader:
        """A reader of the version, which the caller has leased."""
        return Reader(*self.found)

    def gone(self) -> errors.StoreError:
        return errors.StoreError(
            f"the arrays that were offloaded to {self.name!r}, version {self.version}, are gone:"
            " the name was deleted, or has newer trees, of which it keeps only the last two."
            " Offload each tree under its own name"
        )

    def read(self, specs: Sequence[Spec]) -> list[Any]:
        section, records = self.found
        with following.leased(section, records) as there:
            if not there:
                raise self.gone()
            return jax.block_until_ready(fetching.fetch(self.reader, specs, agreement.processes()))


def offload(tree: Any, store: Store, name: str) -> Any:
    """Moves a tree of arrays to a store while the program continues.

    The devices' memory becomes free once the arrays have been written and the caller has no other
    reference to them. Do not donate the arrays afterwards. All processes of the job call it at the
    same place. Call it outside of `jax.jit`.

    Args:
      tree: tree of JAX arrays.
      store: the store.
      name: a name in it. The store keeps the last two trees under each name.

    Returns:
      The tree, with an `OffloadedArray` in place of each array. `fetch` brings the arrays back.
      `store.view` returns arrays over the memory of the store instead, without a copy.

    Raises:
      PoolTooSmallError, StoreError, MismatchError: as for `Store.publish`.
      TypeError: a leaf is not a JAX array, or is traced.

    Example:
      >>> cold = jax_cxl.offload(params, store, "teacher")
      >>> del params
      >>> logits = apply(jax_cxl.fetch(cold), batch)
    """
    flat, structure = jax.tree_util.tree_flatten_with_path(tree)
    specs = [
        dataclasses.replace(
            arrays.spec_of(jax.tree_util.keystr(path), x),
            weak_type=bool(getattr(x, "weak_type", False)),
        )
        for path, x in flat
    ]
    names = names_of(store)
    number = store.publish(name, tree, copy=False)
    publisher = names.known(name)
    assert publisher is not None
    origin = publisher.section.entry.identity, publisher.token
    version = _Version(store, name, number, origin)
    made = [OffloadedArray(**vars(spec), _version=version) for spec in specs]
    return jax.tree.unflatten(structure, made)


def fetch(tree: Any) -> Any:
    """Returns the arrays of a tree that was offloaded, or of a part of it.

    Each process fetches for itself. Call it outside of `jax.jit`.

    Args:
      tree: tree of `OffloadedArray`, for example a layer of what `offload` has returned. Other
        leaves stay as they are.

    Returns:
      The tree of arrays, with their original shardings and weak types.

    Raises:
      StoreError: the arrays are damaged, or are gone because two newer trees were offloaded under
        the name, or the name was deleted.
      TypeError: it is called in a function that `jax.jit` traces.
    """
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        raise TypeError(
            "fetch was called in a function that JAX traces: call it outside, and pass the arrays"
            " to the function"
        )
    flat, structure = jax.tree.flatten(tree)
    of: dict[_Version, list[int]] = {}
    for number, x in enumerate(flat):
        if isinstance(x, OffloadedArray):
            of.setdefault(x._version, []).append(number)
    for version, numbers in of.items():
        found = version.read([flat[number] for number in numbers])
        for number, x in zip(numbers, found, strict=True):
            flat[number] = x
    return jax.tree.unflatten(structure, flat)


def prefetch(tree: Any) -> "concurrent.futures.Future[Any]":
    """Starts `fetch` in a thread, beside computation, and returns a future.

    Args:
      tree: as for `fetch`.

    Returns:
      A future, whose `result()` returns the arrays, or raises the errors of `fetch`. Fetches run
      one after another.

    Example:
      >>> following = jax_cxl.prefetch(layers[0])
      >>> for n in range(len(layers)):
      ...   layer = following.result()
      ...   if n + 1 < len(layers):
      ...     following = jax_cxl.prefetch(layers[n + 1])
      ...   x = apply(layer, x)
    """
    return _threads().submit(fetch, tree)


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1, "jax_cxl fetch")
