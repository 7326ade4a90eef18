"""Optimizers whose state lives in a store."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_cxl import errors
from jax_cxl._job import lifecycle
from jax_cxl._store import agreement, arguments, publishing
from jax_cxl._store.memory import catalog, opening
from jax_cxl._store.memory.layout import Records
from jax_cxl._store.memory.section import Section
from jax_cxl._store.reading.restoring import Reader
from jax_cxl._store.store import Store, names_of
from jax_cxl._store.trees import leaves
from jax_cxl._store.writing.publisher import Publisher
from jax_cxl._tier import fetching
from jax_cxl._tier.plan import STEP, Group, Options, Plan

_GROUP_BYTES = 64 << 20
# A generation is the state after one step. It may take this many blocks more than the first job
# needs. A later job may have more processes. Then it has more tables of checksums, and more blocks
# that are only partly full.
_MORE_BLOCKS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class PooledState:
    """The state of a pooled optimizer after a step. The arrays are in the store.

    Attributes:
      step: how many steps have been made.
      shared: small leaves of the state that all parameters need, such as the count of steps.
      number: number of the generation in the store.
    """

    step: int
    shared: tuple[Any, ...] = dataclasses.field(repr=False)
    number: int = dataclasses.field(repr=False)


class Pooled:
    """An optimizer whose state lives in a store; see `jax_cxl.pooled`."""

    def __init__(self, options: Options, store: Store, name: str):
        """Makes an optimizer; `jax_cxl.pooled` checks the arguments."""
        self._options, self._store, self._name = options, store, name
        self._names = names_of(store)
        self._plan: tuple[Any, Plan] | None = None
        self._publisher: Publisher | None = None
        self._reader: Reader | None = None  # the newest generation that has been read
        self._newest: PooledState | None = None

    def init(self, params: Any) -> PooledState:
        """Writes the state before the first step into the store.

        All processes of the job call it at the same place, as they do `step` and `restore_latest`.

        Args:
          params: tree of JAX arrays, all on the same devices.

        Returns:
          The state of step 0.

        Raises:
          PoolTooSmallError: the store has no room; the message says how much is needed.
          StoreError: the name already has a state, which `restore_latest` returns, or another
            living job publishes it.
          ValueError: the optimizer cannot update these parameters in groups.
          TypeError: a parameter is not an array, or is traced by `jax.jit`.
        """
        plan = self._plan_of(params)
        flat = jax.tree.leaves(params)
        publisher = self._opened(plan)
        # Without this wait, `all_valid` would not find a state that is still being written. If that
        # write has failed, there is no state.
        with contextlib.suppress(errors.CxlError):
            self.wait()
        if publisher.section.all_valid():
            raise errors.StoreError(
                f"{publisher.section.text} already has a state: continue from it with"
                " restore_latest(params), or delete it with store.delete"
            )
        with self._writing(plan, 0) as write:
            for group in plan.groups:
                write(group, plan.start(group, flat))
            shared = plan.start(plan.shared, flat)
            write(plan.shared, shared)
        return self._wrote(0, shared)

    def step(self, params: Any, grads: Any, state: PooledState) -> tuple[Any, PooledState]:
        """Updates parameters.

        The state of each group of parameters comes from the store, and the new state of previous
        groups goes back at the same time. The previous state stays whole until the new state is
        whole. This function returns when the last update has been started, and the last groups are
        written while the program continues.

        Args:
          params: the parameters. Their memory is reused, unless `donate` is False.
          grads: the gradients, a tree of the same structure. They are deleted, unless `donate` is
            False.
          state: the last state that `init`, `step` or `restore_latest` has returned.

        Returns:
          The new parameters, which are bitwise those of the plain optimizer, and the new state.

        Raises:
          ValueError: `state` is not the last state, or the gradients do not fit the parameters.
          StoreError: the state in the store is damaged, or another job has taken the name.
          PeerLostError, CollectiveTimeoutError, MismatchError: as for `Store.publish`.
          TypeError: an argument is not a tree of arrays, or is traced by `jax.jit`.

        After an error call `restore_latest`.
        """
        plan = self._plan_of(params, grads)
        if not isinstance(state, PooledState):
            raise TypeError(f"state={type(state).__name__} must be what init or step has returned")
        if self._names.known(self._name) is not self._publisher:
            raise ValueError(
                "the store was closed, or the name deleted, since the last step: open the store"
                " again, make the optimizer again, and call restore_latest"
            )
        if state is not self._newest:
            newest = f"the state of step {self._newest.step}" if self._newest else "none"
            raise ValueError(
                f"this is not the last state (it is of step {state.step}; the last is {newest})."
                " After an error, or to go back, call restore_latest"
            )
        old, gradients = jax.tree.leaves(params), jax.tree.leaves(grads)
        if self._options.donate:
            _check_distinct(plan, [*old, *gradients])
        new: list[Any] = [None] * len(old)
        self._newest = None
        with self._writing(plan, state.step + 1) as write:
            values = plan.values(old, gradients, state.shared)
            reader = self._opened_reader(state.number)
            ahead = fetching.ahead(reader, [group.fetched for group in plan.groups])
            for group, fetched in zip(plan.groups, ahead, strict=True):
                changed, stored = plan.update(group, values, fetched)
                for n, x in zip(group.params, changed, strict=True):
                    new[n] = x
                if self._options.donate:
                    _delete([each[n] for n in group.params for each in (old, gradients)])
                write(group, stored)
            _, shared = plan.update(plan.shared, values, state.shared)
            write(plan.shared, shared)
        return jax.tree.unflatten(plan.structure, new), self._wrote(state.step + 1, shared)

    def restore_latest(self, params: Any) -> tuple[Any, PooledState] | None:
        """Returns the parameters and the state of the newest whole step.

        A job with any number of processes, and any sharding, can go on from the state of another
        job.

        Args:
          params: tree of arrays, or of `jax.ShapeDtypeStruct` with shardings.

        Returns:
          The parameters, with the shardings of `params`, and the state, whose `step` is the number
          of steps made. None if there is no state.

        Raises:
          StoreError: the states are damaged, or do not fit the parameters and the optimizer.
          ValueError, TypeError: as for `init`.
        """
        plan = self._plan_of(params)
        self._newest = self._reader = None
        # Make a new publisher, as a new job does: a process may have been replaced.
        self._names.forget(self._name)
        find = functools.partial(self._names.section, self._name)
        try:
            publisher = self._publisher = self._names.agreed(self._name, find, "restore_latest")
        except opening.AbsentError:
            return None
        writers = agreement.processes()

        def read(section: Section, records: Records) -> tuple[Any, PooledState]:
            reader = Reader(section, records)
            _check_names(reader, plan, section.text)
            for record in reader.records:
                # The processes share the work.
                if record.writer % len(writers) == writers.index(jax.process_index()):
                    reader.check_all(record.writer)
            made: list[Any] = [None] * len(plan.params)
            for group in plan.groups:
                stored = [plan.stored[n] for n in group.params]
                fetched = fetching.fetch(reader, stored, writers)
                for n, x in zip(group.params, plan.cast(group, fetched), strict=True):
                    made[n] = x
            shared = fetching.fetch(reader, plan.leaves_of(plan.shared), writers)
            step = reader.leaves[STEP].value
            state = PooledState(int(step), tuple(shared), reader.records[0].number)
            self._reader = reader
            tree = jax.tree.unflatten(plan.structure, made)
            return jax.block_until_ready(tree), state

        found = publishing.restore(publisher, read)
        if found is not None:
            self._newest = found[1]
        return found

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the last state is whole in the store.

        Args:
          timeout: seconds, by default `JAX_CXL_TIMEOUT`.

        Raises:
          CxlError: as for `Store.flush`.
        """
        self._store.flush(self._name, timeout)

    def _plan_of(self, params: Any, grads: Any = None) -> Plan:
        structure = jax.tree.structure(params)
        # A job that continues after an error is in a new generation. Programs that were compiled in
        # an earlier generation must not communicate any longer. So a new generation needs a new
        # plan.
        generation = getattr(lifecycle.current(), "generation", 0)
        forms = generation, *(_form(x) for x in jax.tree.leaves(params))
        dtypes = None
        if grads is not None:
            dtypes = _grad_dtypes(structure, jax.tree.leaves(params), grads)
        known = self._plan
        if known is not None and known[0] == (structure, forms, dtypes or known[0][2]):
            return known[1]
        plan = Plan(self._options, params, dtypes)
        dtypes = dtypes or tuple(spec.dtype for spec in plan.params)
        self._plan = (structure, forms, dtypes), plan
        return plan

    def _opened(self, plan: Plan) -> Publisher:
        # If the name was deleted, the store has dropped the publisher.
        known = self._names.known(self._name)
        if self._publisher is None or known is not self._publisher:
            self._reader = None
            self._publisher = self._names.publisher(
                self._name, lambda writers: plan.describe(writers, 0), more_blocks=_MORE_BLOCKS
            )
        return self._publisher

    @contextlib.contextmanager
    def _writing(self, plan: Plan, step: int) -> Iterator[Callable[[Group, Sequence[Any]], None]]:
        """Writes a generation: yields a function that writes the leaves of the next group."""
        publisher = self._opened(plan)
        stream = publisher.stream(None, lambda writers: plan.describe(writers, step))

        def write(group: Group, new: Sequence[Any]) -> None:
            of_store = [jax.random.key_data(x) if leaves.is_key(x) else x for x in new]
            stream.write(dict(enumerate(of_store, group.first)))

        try:
            yield write
            stream.write({plan.shared.first + plan.shared.num_leaves: None})  # the step
            stream.close()
        except BaseException as error:
            stream.abort(error)
            raise

    def _wrote(self, step: int, shared: Sequence[Any]) -> PooledState:
        assert self._publisher is not None
        self._newest = PooledState(step, tuple(shared), self._publisher.last)
        return self._newest

    def _opened_reader(self, number: int) -> Reader:
        """Opens a generation that this job has written or restored."""
        assert self._publisher is not None
        section = self._publisher.section
        if self._reader is None or self._reader.records[0].number != number:
            records = section.complete(number)
            if records is None:
                raise errors.StoreError(
                    f"the last state is gone from {section.text}: call restore_latest or init"
                )
            structure = self._reader.structure if self._reader else None
            self._reader = Reader(section, records, structure=structure)
        return self._reader


def _form(x: Any) -> Any:
    sharding = getattr(x, "sharding", None)
    return getattr(x, "shape", None), getattr(x, "dtype", type(x)), sharding


def _grad_dtypes(structure: Any, params: Sequence[Any], grads: Any) -> tuple[Any, ...]:
    if jax.tree.structure(grads) != structure:
        raise ValueError(
            "the gradients must have the tree structure of the parameters, got"
            f" {jax.tree.structure(grads)}, not {structure}"
        )
    flat = jax.tree_util.tree_leaves_with_path(grads)
    for (path, g), p in zip(flat, params, strict=True):
        if getattr(g, "shape", None) != getattr(p, "shape", None):
            raise ValueError(
                f"the gradient {jax.tree_util.keystr(path)} has shape {getattr(g, 'shape', None)},"
                f" and the parameter {getattr(p, 'shape', None)}"
            )
    return tuple(getattr(g, "dtype", None) for _, g in flat)


def _check_names(reader: Reader, plan: Plan, text: str) -> None:
    """Raises StoreError if a version is not a state of the optimizer."""
    expected = {spec.name for spec in (*plan.stored, *plan.state)} | {STEP}
    if missing := sorted(expected ^ set(reader.leaves)):
        raise errors.StoreError(
            f"{text} has no state of this optimizer for these parameters: {missing[0]} is"
            f" {'stored, but not' if missing[0] in reader.leaves else 'not stored, but'} needed."
            " Use the optimizer and the parameters with which the state was made, or another name"
        )


def _check_distinct(plan: Plan, arrays: Sequence[Any]) -> None:
    names = [spec.name for spec in plan.params]
    names += [name.replace("params", "gradients", 1) for name in names]
    seen: dict[int, str] = {}
    for name, x in zip(names, arrays, strict=True):
        other = seen.setdefault(id(x), name)
        if other != name:
            raise ValueError(
                f"{other} and {name} are the same array, whose memory a step cannot use twice: copy"
                " one of them (jnp.copy), or pass donate=False to pooled"
            )


def _delete(arrays: Sequence[Any]) -> None:
    for x in arrays:
        if isinstance(x, jax.Array) and not x.is_deleted():
            x.delete()


def pooled(
    optimizer: Any,
    store: Store,
    name: str,
    *,
    master: Any = None,
    sharding: Callable[[jax.ShapeDtypeStruct], jax.sharding.Sharding | None] | None = None,
    group_bytes: int = _GROUP_BYTES,
    donate: bool = True,
) -> Pooled:
    """Returns an optimizer whose state lives in a store.

    Devices hold the state of a few parameters at a time. The store holds the parameters and the
    state of each step, so the program need not save them. After a failure `restore_latest` returns
    the newest whole step, in a job of any number of processes. A failure loses at most one step.

    The results are bitwise those of `optimizer`, if its update and the addition of the updates run
    in a compiled function of their own. docs/offload.md says which optimizers can be separated.

    Args:
      optimizer: an optax optimizer, or any object with `init(params)` and
        `update(grads, state, params)`.
      store: the store. For the name it needs three times the memory of the parameters and the
        state: for the last two steps, and for the step that is being written.
      name: the name in the store, which no other living job may use.
      master: dtype of the parameters in the store, for example float32. The optimizer updates the
        parameters in this dtype, and the devices get them rounded to the dtype of `params`, which
        is also the default.
      sharding: function that returns the sharding of an array in the store (a parameter or a leaf
        of the state). It takes the array's shape, dtype and default sharding, which is the sharding
        of the parameter. If it returns None, the default stays. For replicated parameters, it can
        return a sharding by which each device writes a part of their state.
      group_bytes: how many bytes of each device's arrays in the store are updated together. Devices
        need six times this memory. A parameter is never divided.
      donate: whether `step` takes the memory of the parameters and gradients.

    Returns:
      An object with `init`, `step`, `restore_latest` and `wait`.

    Raises:
      TypeError, ValueError: an argument is wrong.

    Example:
      >>> store = jax_cxl.Store("shm:my_run?size=64MiB")
      >>> optimizer = jax_cxl.pooled(optax.adamw(1e-3), store, "adamw")
      >>> params, state = optimizer.restore_latest(params) or (params, optimizer.init(params))
      >>> while state.step < 100:
      ...   grads = gradients(params, batches[state.step])
      ...   params, state = optimizer.step(params, grads, state)
    """
    for method in ("init", "update"):
        if not callable(getattr(optimizer, method, None)):
            raise TypeError(f"optimizer={optimizer!r} must have the function {method}")
    names_of(store)
    catalog.check_name(name)
    if master is not None and not jnp.issubdtype(jnp.dtype(master), jnp.floating):
        raise ValueError(f"master={master!r} must be a floating-point dtype, such as jnp.float32")
    if arguments.whole("group_bytes", group_bytes) < 1:
        raise ValueError(f"group_bytes={group_bytes} must be at least 1")
    arguments.check_bool("donate", donate)
    return Pooled(Options(optimizer, master, sharding, group_bytes, donate), store, name)
