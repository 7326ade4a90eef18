"""How an optimizer updates parameters in groups: which arrays a group has, and its programs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_cxl._store.trees import flatten, leaves
from jax_cxl._store.trees.description import Description
from jax_cxl._tier import arrays, copying, dataflow, separation
from jax_cxl._tier.arrays import Spec

STEP = "['step']"  # name in the store


@dataclasses.dataclass(frozen=True)
class Options:
    """Arguments of `jax_cxl.pooled` on which the programs depend."""

    optimizer: Any
    master: Any
    sharding: Callable[[jax.ShapeDtypeStruct], jax.sharding.Sharding | None] | None
    group_bytes: int
    donate: bool


@dataclasses.dataclass(frozen=True)
class Group:
    """Arrays that are updated together.

    Attributes:
      fetched: the values that are read from the store: first the parameters, if the store has them
        in another dtype (`Options.master`), then the state.
      first: number of its first leaf in the store. The group's parameters come first, then its
        state.
    """

    params: tuple[int, ...]
    state: tuple[int, ...]
    fetched: tuple[Spec, ...]
    first: int

    @property
    def num_leaves(self) -> int:
        """How many leaves the group has in the store."""
        return len(self.params) + len(self.state)


@dataclasses.dataclass(frozen=True)
class _Program:
    """A compiled slice of an update, and the positions of inputs whose memory it reuses."""

    inputs: tuple[int, ...]
    donated: tuple[int, ...]
    run: Any

    def __call__(self, value: Callable[[int], Any]) -> list[Any]:
        given = [value(self.inputs[n]) for n in self.donated]
        kept = [value(x) for n, x in enumerate(self.inputs) if n not in self.donated]
        found: list[Any] = self.run(given, kept)
        return found


class Plan:
    """A plan for an optimizer, made from the descriptions of the parameters.

    The leaves `shared` of the state stay on the devices.
    """

    def __init__(self, options: Options, params: Any, grad_dtypes: Sequence[Any] | None = None):
        """Traces the optimizer. By default gradients have the dtypes of the parameters."""
        self._options = options
        self.structure = jax.tree.structure(params)
        self.params = [arrays.spec_of(name, x) for name, x in arrays.named("params", params)]
        if not self.params:
            raise ValueError("params has no leaves: pass a tree with at least one array")
        arrays.check_one_set_of_devices(self.params)
        self.stored = [self._placed(_as_master(x, options.master)) for x in self.params]
        stored, on_devices = (
            [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in specs]
            for specs in (self.stored, self.params)
        )
        self._init, (_, state) = dataflow.trace(self._initialize, on_devices)
        dtypes = grad_dtypes or [spec.dtype for spec in self.params]
        grads = [
            jax.ShapeDtypeStruct(spec.shape, dtype)
            for spec, dtype in zip(self.params, dtypes, strict=True)
        ]
        update, (_, after) = dataflow.trace(self._update, stored, grads, state)
        _check_same(state, after)
        count = len(self.params)
        found = separation.separate(update, count, options.master is None)
        self._separation, self.shared = found, found.shared
        params_of = {n: part.params for part in found.parts for n in part.state}
        self.state = [
            self._state_spec(name, x, params_of.get(number, ()))
            for number, (name, x) in enumerate(arrays.named("state", state))
        ]
        self.groups = self._grouped()
        # GPUs check what they fetch while programs use it, so these programs must not overwrite it.
        self._donates_fetched = not copying.may_copy(self.stored[0].sharding)
        self._compilations: dict[Any, Any] = {}  # by everything that they depend on
        self._made_programs: dict[Any, _Program] = {}
        self._described: dict[tuple[int, ...], Description] = {}

    def describe(self, writers: tuple[int, ...], step: int) -> flatten.Flat:
        """Describes the tree that processes write into the store after a step."""
        specs = [spec for group in self.groups for spec in self.leaves_of(group)]
        specs += [self.state[n] for n in self.shared]
        if writers not in self._described:
            own = jax.process_index()
            found = [flatten.describe(spec.name, spec.struct, writers, own) for spec in specs]
            found.append(leaves.Leaf(STEP))
            self._described[writers] = Description(tuple(found), writers, whole=True)
        structs: list[Any] = [spec.stored_struct for spec in specs]
        return flatten.Flat(self._described[writers], [*structs, None], [step])

    def leaves_of(self, group: Group) -> list[Spec]:
        """Returns the leaves of a group in the store."""
        return [self.stored[n] for n in group.params] + [self.state[n] for n in group.state]

    def start(self, group: Group, params: Sequence[Any]) -> list[Any]:
        """Returns the leaves of a group in the store before the first step."""
        wanted = [*group.params, *(len(self.params) + n for n in group.state)]
        return self._begin(wanted, self.leaves_of(group), params)

    def start_shared(self, params: Sequence[Any]) -> list[Any]:
        """Returns the leaves of the state that stay on the devices, before the first step."""
        wanted = [len(self.params) + n for n in self.shared]
        return self._begin(wanted, [self.state[n] for n in self.shared], params)

    def cast(self, group: Group, stored: Sequence[Any]) -> list[Any]:
        """Returns the parameters of a group for the devices, cast from those in the store."""
        specs = [self.params[n] for n in group.params]
        if not specs:
            return []
        program = self._compiled(("cast", _form(specs)), _cast(specs), specs)
        found: list[Any] = program([], list(stored))
        return found

    def scalars(self, params: Sequence[Any], grads: Sequence[Any], shared: Sequence[Any]) -> Any:
        """Computes the scalars that several groups need. Returns their values, by variable."""
        scalars = self._separation.scalars
        if not scalars:
            return {}

        def make() -> _Program:
            part = dataflow.slice_of(self._separation.update, scalars)
            # Parameters and gradients are needed later, so their memory must not be reused.
            return self._program(part, [], donate=False)

        made = self._made("scalars", make)
        found = made(self._values(params, grads, {}, shared, {}))
        return dict(zip(scalars, found, strict=True))

    def next_shared(self, shared: Sequence[Any], scalars: Any) -> list[Any]:
        """Returns the leaves of the state that stay on the devices, after a step."""
        if not self.shared:
            return []

        def make() -> _Program:
            part = separation.slice_part(self._separation, (), self.shared)
            return self._program(part, [self.state[n] for n in self.shared])

        made = self._made("shared", make)
        return made(self._values((), (), {}, shared, scalars))[: len(self.shared)]

    def update(
        self,
        group: Group,
        params: Sequence[Any],
        grads: Sequence[Any],
        fetched: Sequence[Any],
        shared: Sequence[Any],
        scalars: Any,
    ) -> tuple[list[Any], list[Any]]:
        """Updates a group from what was `fetched`, whose memory the update reuses on CPUs.

        Returns the new parameters on the devices, and the new leaves in the store.
        """

        def make() -> _Program:
            part = separation.slice_part(self._separation, group.params, group.state)
            on_devices = [self.params[n] for n in group.params]
            return self._program(part, self.leaves_of(group), on_devices)

        masters = self._options.master is not None
        count = len(group.params) if masters else 0
        stored = dict(zip(group.params, fetched[:count], strict=False)) if masters else {}
        of_state = dict(zip(group.state, fetched[count:], strict=True))
        made = self._made(group.first, make)
        found = made(self._values(params, grads, of_state, shared, scalars, stored))
        return found[len(found) - len(group.params) :], found[: group.num_leaves]

    def _made(self, what: Any, make: Callable[[], "_Program"]) -> "_Program":
        if what not in self._made_programs:
            self._made_programs[what] = make()
        return self._made_programs[what]

    def _program(
        self,
        part: dataflow.Slice,
        specs: Sequence[Spec],
        casts: Sequence[Spec] = (),
        donate: bool = True,
    ) -> "_Program":
        """Returns the program of a slice, whose first outputs are `specs`, and the others scalars.

        It also returns copies of its first outputs, cast as `casts` say.
        """
        donated = tuple(
            n for n, variable in enumerate(part.inputs) if donate and self._is_donated(variable)
        )
        outputs: list[Spec | None] = [*specs]
        outputs += [None] * (len(part.outputs) - len(specs))
        run = _and_cast(part, casts) if casts else part
        key = part.key(), _form(outputs), _form(casts)
        return _Program(part.inputs, donated, self._compiled(key, run, [*outputs, *casts], donated))

    def _is_donated(self, variable: int) -> bool:
        count = len(self.params)
        if variable < count and self._options.master is None:
            return self._options.donate
        state = variable - 2 * count
        fetched = variable < count or (0 <= state < len(self.state) and state not in self.shared)
        return fetched and self._donates_fetched

    def _values(
        self,
        params: Sequence[Any],
        grads: Sequence[Any],
        state: dict[int, Any],
        shared: Sequence[Any],
        scalars: Any,
        stored: dict[int, Any] | None = None,
    ) -> Callable[[int], Any]:
        """Returns a function that returns the value of a variable of the update."""
        count = len(self.params)
        of_state = state | dict(zip(self.shared, shared, strict=True))

        def value(variable: int) -> Any:
            if variable < count:
                return stored[variable] if stored else params[variable]
            if variable < 2 * count:
                return grads[variable - count]
            if variable < 2 * count + len(self.state):
                return of_state[variable - 2 * count]
            return scalars[variable]

        return value

    def _begin(
        self, wanted: Sequence[int], specs: Sequence[Spec], params: Sequence[Any]
    ) -> list[Any]:
        if not wanted:
            return []
        made = dataflow.slice_of(self._init, [self._init.outputs[n] for n in wanted])
        program = self._compiled(("begin", made.key(), _form(specs)), made, specs)
        found: list[Any] = program([], [params[variable] for variable in made.inputs])
        return found

    def _compiled(
        self,
        key: Any,
        run: Callable[..., Any],
        specs: Sequence[Spec | None],
        donated: tuple[int, ...] = (),
    ) -> Any:
        """Compiles, once for each key, a function of donated and of other arguments, two lists."""
        if (key, donated) not in self._compilations:

            def program(given: list[Any], kept: list[Any]) -> list[Any]:
                left, more = iter(kept), iter(given)
                count = len(given) + len(kept)
                return list(run(*(next(more if n in donated else left) for n in range(count))))

            shardings = [spec and spec.wanted_sharding for spec in specs]
            self._compilations[key, donated] = jax.jit(
                program, donate_argnums=0, out_shardings=shardings
            )
        return self._compilations[key, donated]

    def _initialize(self, params: list[Any]) -> tuple[list[Any], Any]:
        stored = _cast(self.stored)(*params)
        return stored, self._options.optimizer.init(jax.tree.unflatten(self.structure, stored))

    def _update(self, stored: list[Any], grads: list[Any], state: Any) -> tuple[list[Any], Any]:
        if self._options.master is not None:
            grads = [g.astype(p.dtype) for g, p in zip(grads, stored, strict=True)]
        params, gradients = (jax.tree.unflatten(self.structure, x) for x in (stored, grads))
        updates, state = self._options.optimizer.update(gradients, state, params)
        structure: Any = self.structure
        # optax.apply_updates does the same.
        new = [
            p if u is None else jnp.asarray(p + u).astype(p.dtype)
            for p, u in zip(stored, structure.flatten_up_to(updates), strict=True)
        ]
        return new, state

    def _state_spec(self, name: str, x: Any, params: Sequence[int]) -> Spec:
        """Describes a leaf of the state. By default it is sharded like its parameter."""
        like = next((self.stored[n] for n in params if self.stored[n].shape == x.shape), None)
        first = self.stored[0]
        sharding = like.sharding if like else arrays.replicated_like(first.sharding)
        spec = Spec(name, tuple(x.shape), x.dtype, sharding, (like or first).committed)
        return self._placed(spec) if like else spec

    def _placed(self, spec: Spec) -> Spec:
        chosen = self._options.sharding and self._options.sharding(spec.struct)
        if chosen is None:
            return spec
        if chosen.device_set != spec.sharding.device_set:
            raise ValueError(
                f"the sharding for {spec.name} does not have the devices of the parameters: use a"
                " sharding over these devices"
            )
        return dataclasses.replace(spec, sharding=chosen, committed=True)

    def _grouped(self) -> tuple[Group, ...]:
        groups: list[Group] = []
        parts: list[separation.Part] = []
        size = 0
        for part in (*self._separation.parts, None):
            of_part = self._bytes_of(part) if part else 0
            if parts and (part is None or size + of_part > self._options.group_bytes):
                groups.append(self._group(parts, groups))
                parts, size = [], 0
            if part is not None:
                self._check_part(part, of_part)
                parts.append(part)
                size += of_part
        return tuple(groups)

    def _group(self, parts: Sequence[separation.Part], groups: Sequence[Group]) -> Group:
        params = tuple(n for part in parts for n in part.params)
        state = tuple(n for part in parts for n in part.state)
        fetched = [self.stored[n] for n in params] if self._options.master is not None else []
        fetched += [self.state[n] for n in state]
        first = sum(group.num_leaves for group in groups)
        return Group(params, state, tuple(fetched), first)

    def _bytes_of(self, part: separation.Part) -> int:
        specs = [self.stored[n] for n in part.params] + [self.state[n] for n in part.state]
        return sum(spec.bytes_per_device for spec in specs)

    def _check_part(self, part: separation.Part, size: int) -> None:
        if len(part.params) > 1 and size > self._options.group_bytes:
            first, other = (self.params[n].name for n in part.params[:2])
            raise ValueError(
                f"the optimizer cannot update its parameters in groups: the updates of {first} and"
                f" {other} depend on each other, by more than scalars that follow from the"
                f" gradients. {len(part.params)} parameters with {size} bytes on each device would"
                f" be one group, and group_bytes is {self._options.group_bytes}. Wrappers such as"
                " optax.MultiSteps and optax.apply_if_finite cause this: do their work on the"
                " gradients, before step. Or pass a larger group_bytes, if the devices have room"
            )


def _as_master(spec: Spec, dtype: Any) -> Spec:
    if dtype is None or not jnp.issubdtype(spec.dtype, jnp.floating):
        return spec
    return dataclasses.replace(spec, dtype=jnp.dtype(dtype))


def _check_same(before: Any, after: Any) -> None:
    """Raises TypeError if an update changes the form of the state."""
    structures: list[Any] = [jax.tree.structure(x) for x in (before, after)]
    if structures[0] != structures[1]:
        raise TypeError(
            "the optimizer's init and update return states of different structures: make both"
            " return the same structure"
        )
    for (name, x), y in zip(arrays.named("state", before), jax.tree.leaves(after), strict=True):
        forms = [(x.shape, x.dtype, bool(getattr(x, "weak_type", False))) for x in (x, y)]
        if forms[0] != forms[1]:
            raise TypeError(
                f"the optimizer's update changes {name} from {forms[0]} to {forms[1]} (shape,"
                " dtype, weak type): make init return what update returns"
            )


def _form(specs: Sequence[Spec | None]) -> Any:
    return tuple(s and (s.dtype, s.wanted_sharding) for s in specs)


def _cast(specs: Sequence[Spec]) -> Callable[..., list[Any]]:
    """Returns a function that casts arrays.

    It also copies arrays that already have the dtype. The copy is needed because the store writes
    arrays later, and programs may take the memory of the parameters before that.
    """
    return lambda *values: [jnp.array(x, s.dtype) for x, s in zip(values, specs, strict=True)]


def _and_cast(update: Callable[..., list[Any]], specs: Sequence[Spec]) -> Callable[..., list[Any]]:
    """Returns an update that also returns the new parameters, cast to the dtypes on the devices."""

    def run(*values: Any) -> list[Any]:
        new = update(*values)
        return [*new, *_cast(specs)(*new[: len(specs)])]

    return run
