"""Checks the code that XLA's compiler for GPUs makes of start, tie and done. Needs no GPU.

XLA rewrites programs in ways that a lowering does not show. For example, it copies the values that
a loop carries, and fuses calls with the slices that produce their operands. No such rewrite may
touch the result of a start before its done.

The tests need XLA's compiler for GPUs: see CONTRIBUTING.md.
"""

import collections
import json
import os
import re
import subprocess
import sys
from typing import NamedTuple

import jax
import job
from absl.testing import absltest, parameterized

INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = .*? ([a-z][a-z-]*)\((.*?)\)(?:, (.*))?$")

# The collectives of `train`: six gathers forward, six more for the gradients, six sums of
# gradients, and one sum of the loss.
TRAINED = 19


class Instruction(NamedTuple):
    opcode: str
    operands: list[str]
    attributes: str

    @property
    def target(self) -> str:
        found = re.search(r'custom_call_target="jax_cxl_(\w+)"', self.attributes)
        return found[1] if found else ""


def computations(text: str) -> list[dict[str, Instruction]]:
    """Returns a dict for each computation of a module: name -> instruction, in execution order."""
    found: list[dict[str, Instruction]] = []
    for line in text.splitlines():
        if line.endswith("{") and "->" in line:
            found.append({})
        elif match := INSTRUCTION.match(line):
            name, opcode, operands, attributes = match.groups()
            names = re.findall(r"%([^\s,]+)", operands)
            found[-1][name] = Instruction(opcode, names, attributes or "")
    return [computation for computation in found if computation]


def memory(computation: dict[str, Instruction], name: str) -> tuple[str, str]:
    """Returns the name of the instruction that allocated the memory of the value `name`.

    If that instruction has several results, the second string is the index of the result in this
    memory. Otherwise it is "".
    """
    index = ""
    while (instruction := computation[name]).opcode in ("bitcast", "get-tuple-element"):
        if instruction.opcode == "get-tuple-element":
            index = re.search(r"index=(\d+)", instruction.attributes)[1]
        name = instruction.operands[0]
    return name, index


@absltest.skipUnless(
    "JAX_CXL_GPU_COMPILER" in os.environ, "needs XLA's compiler for GPUs: see CONTRIBUTING.md"
)
class CompiledForGpusTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = os.pathsep.join([os.environ["JAX_CXL_GPU_COMPILER"], *sys.path])
        done = subprocess.run(
            [sys.executable, str(job.PROGRAMS / "gpu/compile_for_gpus.py")],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=280,
        )
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        programs = json.loads(done.stdout)
        cls.modules = {name: computations(text) for name, text in programs.items()}

    def calls(self, program):
        """Yields each computation that calls jax_cxl, with the names of its calls.

        The names are in a dict: target of the calls -> names of the instructions.
        """
        for computation in self.modules[program]:
            names = collections.defaultdict(list)
            for name, instruction in computation.items():
                if instruction.target:
                    names[instruction.target].append(name)
            if names:
                yield computation, names

    # Each case has a program and its number of pairs of start and done. In layers_of_experts, each
    # of the 2 layers gathers its parameters and scatters their gradients: 2 pairs. For each of two
    # micro-batches, the layer also moves rows twice forward and twice backward: 8 pairs.
    @parameterized.parameters(
        ("straight", 1),
        ("loop", 1),
        ("stack_of_layers", 7),
        ("layers_of_experts", 2 * (2 + 8)),
        ("trained", TRAINED),
        ("trained_early", TRAINED),
        ("two_axes", 1),
        ("rows_of_a_table", 1),
    )
    def test_done_gets_what_start_made(self, program, expected):
        if program.startswith("trained"):
            self.need_hook()
        total = 0
        for computation, names in self.calls(program):
            starts = names["start"] + names["start_rows"] + names["start_table"]
            dones = names["done"] + names["table_done"]
            started = {memory(computation, name)[0]: name for name in starts}
            for name in dones:
                x, y = computation[name].operands[:2]
                start, result = memory(computation, y)
                self.assertIn(start, started, computation[name])
                self.assertEqual(result, "0")
                given = computation[start].operands[0]
                self.assertEqual(memory(computation, x), memory(computation, given))
                del started[start]
            self.assertEmpty(started, "executed a second time")
            total += len(dones)
        self.assertEqual(total, expected)

    # Each case has a program and the number of its collectives that have no matrix product between
    # start and done. In a stack of layers, the first gather can overlap only with the preparation
    # of the loop. In layers_of_experts, the first cotangents that go to experts can overlap only
    # with the start of another collective.
    @parameterized.parameters(
        ("straight", 0),
        ("loop", 0),
        ("stack_of_layers", 1),
        ("layers_of_experts", 1),
        ("two_axes", 0),
        ("rows_of_a_table", 0),
    )
    def test_work_stands_between(self, program, without_products):
        bare = []
        for computation, names in self.calls(program):
            if not names["tie"]:
                continue
            order = list(computation)
            for done in names["done"] + names["table_done"]:
                start, _ = memory(computation, computation[done].operands[1])
                between = order[order.index(start) : order.index(done)]
                if not set(between) & set(names["tie"]):
                    continue  # The program waits for it at once.
                if not any(
                    re.search("dot|gemm|cublas", name + str(computation[name])) for name in between
                ):
                    bare.append(f"{start} ... {done}")
        self.assertLen(bare, without_products)

    def need_hook(self):
        """Skips the test if the takeover does not work without a GPU in this version of JAX."""
        if jax.__version_info__ < (0, 11) and not list(self.calls("trained")):
            self.skipTest("XLA before JAX 0.11 calls no hook if it compiles for absent GPUs")

    def test_early_starts_have_more_work_between(self):
        self.need_hook()
        between = {}
        for program in ("trained", "trained_early"):
            ((computation, names),) = self.calls(program)
            order = list(computation)
            products = [i for i, name in enumerate(order) if re.search("gemm|dot", name)]
            between[program] = [
                sum(order.index(start) < i < order.index(done) for i in products)
                for done in names["done"]
                for start in [memory(computation, computation[done].operands[1])[0]]
            ]
        hidden = {name: sum(map(bool, counts)) for name, counts in between.items()}
        self.assertGreater(hidden["trained_early"], hidden["trained"], between)
        self.assertGreater(sum(between["trained_early"]), 2 * sum(between["trained"]), between)

    def test_no_collective_is_left_out_of_what_is_timed(self):
        # There are two gathers and a scatter in the loop, and one gather and one scatter after it.
        calls = self.calls("communication")
        self.assertEqual(sum(len(names["collective"]) for _, names in calls), 5)


if __name__ == "__main__":
    absltest.main()
