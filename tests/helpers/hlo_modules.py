"""HLO modules with collectives in XLA's own text, before and after jax_cxl's hook."""

import re

try:
    from jaxlib import _hlo
except ImportError:  # In JAX 0.12 it is a part of another module.
    from jaxlib import _jax as _hlo

from jax_cxl._takeover import hook
from jax_cxl._takeover.hlo.wire import Message
from jax_cxl._takeover.world import World

# Devices 0 and 1 belong to process 0, devices 2 and 3 to process 1. The rank of each device differs
# from its id.
WORLD = World({0: 3, 1: 2, 2: 1, 3: 0}, {0: 0, 1: 0, 2: 1, 3: 1})

ADD = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}
"""


def serialized(text):
    """Parses the text of a module; returns the serialized module."""
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def module(body, devices=(0, 1, 2, 3), header="HloModule m, is_scheduled=true"):
    """Returns a serialized module with this body, whose partitions run on these devices."""
    data = serialized(header + ADD + body)
    assignment = Message().add(1, 1).add(2, len(devices))
    for device in devices:
        assignment.add(3, Message().set_integers(1, [device]))
    return Message(data).set(15, assignment).encode()


def text(data):
    """Returns the text of a serialized module."""
    return _hlo.HloModule.from_serialized_hlo_module_proto(data).to_string()


def rewritten(body, devices=(0, 1, 2, 3), world=WORLD, **options):
    """Runs the hook on a module with this body; returns its new text, None if left unchanged."""
    after = hook.transform(module(body, devices), lambda: world, **options)
    return None if after is None else text(after)


def all_reduce(groups, extra="channel_id=1, use_global_device_ids=true"):
    return (
        "ENTRY main { p = f32[8]{0} parameter(0)\n"
        f"ROOT r = f32[8]{{0}} all-reduce(p), replica_groups={groups}, {extra}, to_apply=add }}"
    )


def check_pairs(test, after, starts):
    """Checks that a module consists of `starts` starts, a `negate`, and as many dones."""
    entry = after[after.index("ENTRY") :]
    targets = re.findall(r'custom_call_target="(jax_cxl_\w+)"| negate\(', entry)
    test.assertEqual(targets, ["jax_cxl_start"] * starts + [""] + ["jax_cxl_done"] * starts)
    test.assertIn("output_to_operand_aliasing={{}: (1, {})}", entry)
    for opcode in (" all-", "reduce-scatter-", "collective-", " async-", " copy(", "convert("):
        test.assertNotIn(opcode, entry)
