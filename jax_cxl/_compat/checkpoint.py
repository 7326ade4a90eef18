"""The rules by which `jax.checkpoint` splits functions into two passes."""

from collections.abc import Callable
from typing import Any

from jax._src.ad_checkpoint import name_p as _name_p
from jax._src.interpreters import partial_eval as _partial_eval

_partial_eval.partial_eval_jaxpr_custom_rules, _partial_eval.Saveable  # noqa: B018


def name_of(eqn: Any) -> str | None:
    """Returns the name that `checkpoint_name` gives to the result of an equation, None if none."""
    return eqn.params["name"] if eqn.primitive is _name_p else None


def register_rule(primitive: Any, rule: Callable[..., Any]) -> None:
    """Sets how `jax.checkpoint` splits an equation into a forward and a backward pass.

    The rule takes the policy, two lists of bools, and the equation. For each operand, the first
    list tells whether the forward pass lacks the operand, and the second list whether the backward
    pass has it. It returns the equations of the forward and of the backward pass (either may be
    None), two such lists for the results, and the variables that the forward pass keeps for the
    backward pass.
    """
    _partial_eval.partial_eval_jaxpr_custom_rules[primitive] = rule


def is_saveable(decision: Any) -> bool:
    """Whether `decision`, which a policy of `jax.checkpoint` made, keeps a value on the device."""
    return decision is True or isinstance(decision, type(_partial_eval.Saveable))
