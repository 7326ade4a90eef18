"""What a loaded program says about the job for which it was compiled."""

import types

import numpy as np
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl._lowering import contract
from jax_cxl._lowering.contract import Op
from jax_cxl._takeover import config, loaded_programs
from jax_cxl._takeover.hlo.wire import Message


def module(config, devices):
    """Returns a serialized module with one call, compiled for these devices."""
    call = Message().set(2, "custom-call").set(28, "jax_cxl_collective").set(35, 1).set(43, config)
    assignment = Message().set(1, 1).set(2, len(devices))
    for device in devices:
        assignment.add(3, Message().set_integers(1, [device]))
    computation = Message().add(2, call).set(5, 7).set(6, 1)
    return Message().set(1, "jit_f").add(3, computation).set(6, 7).set(15, assignment).encode()


def attributes(ranks, generation=0):
    made = contract.attributes(
        "psum", Op.ALL_REDUCE, np.array([ranks]), generation=generation, program="jit_f"
    )
    return config.of(made)


def job(generation=0, **ranks):
    return types.SimpleNamespace(
        rank_of_device={int(name[1:]): rank for name, rank in ranks.items()}, generation=generation
    )


class LoadedProgramsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("x = 7 : i32", [7]),
        ("x = array<i32>", []),
        ("x = array<i32: 0, 12, -1>", [0, 12, -1]),
        ("x = dense<[0, 3]> : tensor<2xi32>", [0, 3]),
        ("x = dense<5> : tensor<1xi32>", [5]),
        ("x = dense<> : tensor<0xi32>", []),
        ('x = dense<"0x00000000FF000000FFFFFFFF"> : tensor<3xi32>', [0, 255, -1]),
        ("y = 3 : i32", []),
    )
    def test_attributes_in_all_forms(self, text, expected):
        config = f"{{a = 1 : i64, {text}, z = 2 : i32}}"
        self.assertEqual(loaded_programs._integers(config, "x"), expected)

    def test_what_fits(self):
        for devices in (None, [0, 2048]):
            data = module(attributes([0, 1]), [0, 2048])
            found = loaded_programs._check(data, devices, job(d0=0, d2048=1))
            self.assertEqual(found, {"jit_f"})

    @parameterized.parameters(
        ([0, 1], 0, [2048, 0], job(d0=0, d2048=1), "for the devices"),
        ([0, 2], 0, [0, 2048], job(d0=0, d2048=1), "in another job"),
        ([0, 1], 0, [0, 2048], job(d0=0, d1=1, d2048=2), "in another job"),
        ([0, 1], 0, [0, 2048], job(d0=0), "in another job"),
        ([0, 1], 1, [0, 2048], job(d0=0, d2048=1), "in generation 1"),
        ([0, 1], 0, [0, 2048], job(generation=2, d0=0, d2048=1), "this is generation 2"),
    )
    def test_what_does_not_fit(self, ranks, generation, devices, running, why):
        data = module(attributes(ranks, generation), [0, 2048])
        with self.assertRaisesRegex(jax_cxl.NotInitializedError, why):
            loaded_programs._check(data, devices, running)


if __name__ == "__main__":
    absltest.main()
