"""How an optimizer updates parameters in groups: which arrays a group has, and its programs."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_cxl._compat.tracing import Var
from jax_cxl._store.trees import flatten, leaves
from jax_cxl._store.trees.flatten import Description
from jax_cxl._tier import arrays, copying, dataflow, separation
from jax_cxl._tier.arrays import Spec

STEP = "['step']"  # name in the store
_Program = Callable[[Mapping[Var, Any]], list[Any]]  # of the values of variables


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
        in another dtype (`Options.master`), then the state. The group `Plan.shared` has none.
      variables: the variables of the update that have these values, or the state of the group.
      first: number of its first leaf in the store. The group's parameters come first, then its
        state.
    """

    params: tuple[int, ...]
    state: tuple[int, ...]
    fetched: tuple[Spec, ...]
    variables: tuple[Var, ...]
    first: int

    @property
    def num_leaves(self) -> int:
        return len(self.params) + len(self.state)


class Plan:
    """A plan for an optimizer, made from the descriptions of the parameters.

    The leaves of the state that all parts need stay on the devices. They are the group `shared`,
    which comes after all others in the store.
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
        self._separation = found
        # The inputs of the update: parameters, gradients, state.
        self._params, self._state = update.inputs[:count], update.inputs[2 * count :]
        params_of = {n: part.params for part in found.parts for n in part.state}
        self.state = [
            self._state_spec(name, x, params_of.get(number, ()))
            for number, (name, x) in enumerate(arrays.named("state", state))
        ]
        self.groups = self._grouped()
        end = sum(group.num_leaves for group in self.groups)
        variables = tuple(self._state[n] for n in found.shared)
        self.shared = Group((), found.shared, (), variables, end)
        donated: set[Var] = set()
        if options.donate and options.master is None:
            donated.update(self._params)
        # GPUs check what they fetch while programs use it, so these programs must not overwrite it.
        if not copying.may_copy(self.stored[0].sharding):
            donated.update(variable for group in self.groups for variable in group.variables)
        self._donated = donated
        self._compilations: dict[Any, Any] = {}  # by everything that they depend on
        self._programs: dict[Any, _Program] = {}  # by the first leaves of their groups
        self._described: dict[tuple[int, ...], Description] = {}

    def describe(self, writers: tuple[int, ...], step: int) -> flatten.Flat:
        """Describes the tree that processes write into the store after a step."""
        groups = *self.groups, self.shared
        specs = [spec for group in groups for spec in self.leaves_of(group)]
        if writers not in self._described:
            own = jax.process_index()
            found = [flatten.describe(spec.name, spec.struct, writers, own) for spec in specs]
            found.append(leaves.Leaf(STEP))
            self._described[writers] = Description(tuple(found), writers, whole=True)
        structs: list[Any] = [spec.stored_struct for spec in specs]
        return flatten.Flat(self._described[writers], [*structs, None], [step])

    def leaves_of(self, group: Group | separation.Part) -> list[Spec]:
        """Returns the leaves of a group or a part in the store."""
        return [self.stored[n] for n in group.params] + [self.state[n] for n in group.state]

    def start(self, group: Group, params: Sequence[Any]) -> list[Any]:
        """Returns the leaves of a group in the store before the first step."""
        wanted = [*group.params, *(len(self.params) + n for n in group.state)]
        part = dataflow.slice_of(self._init, [self._init.outputs[n] for n in wanted])
        program = self._program(part, self.leaves_of(group), donate=False)
        return program(dict(zip(self._init.inputs, params, strict=True)))

    def cast(self, group: Group, stored: Sequence[Any]) -> list[Any]:
        """Returns the parameters of a group for the devices, cast from those in the store."""
        specs = [self.params[n] for n in group.params]
        found: list[Any] = self._compiled(("cast", _form(specs)), _cast(specs), specs)(*stored)
        return found

    def values(
        self, params: Sequence[Any], grads: Sequence[Any], shared: Sequence[Any]
    ) -> dict[Var, Any]:
        """Returns the values of variables of the update that all groups may need.

        Computes the scalars that several groups need.
        """
        values = dict(zip(self._separation.update.inputs, [*params, *grads], strict=False))
        values |= zip(self.shared.variables, shared, strict=True)
        if scalars := self._separation.scalars:
            if "scalars" not in self._programs:
                part = dataflow.slice_of(self._separation.update, scalars)
                # Parameters and gradients are needed later, so their memory must not be reused.
                self._programs["scalars"] = self._program(part, [], donate=False)
            values |= zip(scalars, self._programs["scalars"](values), strict=True)
        return values

    def update(
        self, group: Group, values: dict[Var, Any], fetched: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Updates a group from what was `fetched`, whose memory the update reuses on CPUs.

        Returns the new parameters on the devices, and the new leaves in the store.
        """
        if group.first not in self._programs:
            part = separation.slice_part(self._separation, group.params, group.state)
            on_devices = [self.params[n] for n in group.params]
            self._programs[group.first] = self._program(part, self.leaves_of(group), on_devices)
        of_group = dict(zip(group.variables, fetched, strict=True))
        found = self._programs[group.first](collections.ChainMap(of_group, values))
        return found[len(found) - len(group.params) :], found[: group.num_leaves]

    def _program(
        self,
        part: dataflow.Dataflow,
        specs: Sequence[Spec],
        casts: Sequence[Spec] = (),
        donate: bool = True,
    ) -> _Program:
        """Returns the program of a slice, whose first outputs are `specs`, and the others scalars.

        It also returns copies of its first outputs, cast as `casts` say.
        """
        donated = tuple(
            n for n, variable in enumerate(part.inputs) if donate and variable in self._donated
        )
        outputs: list[Spec | None] = [*specs]
        outputs += [None] * (len(part.outputs) - len(specs))

        def run(*values: Any) -> list[Any]:
            new = part(*values)
            return [*new, *_cast(casts)(*new[: len(casts)])]

        key = part.key(), _form(outputs), _form(casts)
        compiled = self._compiled(key, run, [*outputs, *casts], donated)
        return lambda values: compiled(*(values[variable] for variable in part.inputs))

    def _compiled(
        self,
        key: Any,
        run: Callable[..., Any],
        specs: Sequence[Spec | None],
        donated: tuple[int, ...] = (),
    ) -> Any:
        if (key, donated) not in self._compilations:
            shardings = [spec and spec.wanted_sharding for spec in specs]
            self._compilations[key, donated] = jax.jit(
                run, donate_argnums=donated, out_shardings=shardings
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
        found: list[list[separation.Part]] = []
        size = 0
        for part in self._separation.parts:
            of_part = sum(spec.bytes_per_device for spec in self.leaves_of(part))
            self._check_part(part, of_part)
            if not found or size + of_part > self._options.group_bytes:
                found.append([])
                size = 0
            found[-1].append(part)
            size += of_part
        groups: list[Group] = []
        for parts in found:
            params = tuple(n for part in parts for n in part.params)
            state = tuple(n for part in parts for n in part.state)
            masters = params if self._options.master is not None else ()
            fetched = *(self.stored[n] for n in masters), *(self.state[n] for n in state)
            variables = *(self._params[n] for n in masters), *(self._state[n] for n in state)
            first = groups[-1].first + groups[-1].num_leaves if groups else 0
            groups.append(Group(params, state, fetched, variables, first))
        return tuple(groups)

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
