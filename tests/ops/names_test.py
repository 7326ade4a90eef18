"""Checks that names that are defined in two places are equal."""

import importlib
import pathlib
import re
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

import jax_cxl
from jax_cxl import _core, lax
from jax_cxl._lowering import contract
from jax_cxl.ops import public as ops

_ROOT = pathlib.Path(__file__).parents[2]
_ATTRIBUTE_TYPES = {
    "std::string_view": "text",
    "int32_t": "int32",
    "int64_t": "int64",
    "Int32s": "int32s",
    "Int64s": "int64s",
}


class NamesTest(absltest.TestCase):
    def test_public_names(self):
        others = {
            *(
                "Future",
                "MoeHandle",
                "OperationStats",
                "Snapshots",
                "Stats",
                "Store",
                "Table",
                "TableStats",
            ),
            *("expert_placement", "explain", "fetch", "initialize", "lax", "make_mesh", "offload"),
            *(
                "offload_residuals",
                "pooled",
                "prefetch",
                "regroup",
                "replace_collectives",
                "run",
                "shutdown",
                "stats",
            ),
            *(name for name in dir(jax_cxl.errors) if re.fullmatch(r"[A-Z]\w+Error", name)),
        }
        self.assertContainsSubset(ops.__all__, jax_cxl.__all__)
        self.assertContainsSubset(set(jax_cxl.__all__) - {*ops.__all__}, others)
        for name in jax_cxl.__all__:
            self.assertIsNotNone(getattr(jax_cxl, name))

    def test_documents(self):
        pages = (_ROOT / "docs" / "reference").glob("*.md")
        text = "".join(page.read_text() for page in pages)
        listed = re.findall(r"^::: jax_cxl\.(?:ops\.\w+\.)?(\w+)$", text, re.MULTILINE)
        names = {name for name in jax_cxl.__all__ if not name.endswith("Error")}
        self.assertEqual({*listed}, names - {"lax"} | {"errors"})
        table = (_ROOT / "docs" / "collectives.md").read_text().partition("## Which dtypes")[0]
        for name in {*ops.__all__} - {"start"}:
            self.assertRegex(table, f"(?m)^\\|.*`{name}`")

    def test_every_operation_has_an_example(self):
        for name in ops.__all__:
            function = getattr(ops, name)
            self.assertIn("Example:", function.__doc__ or "", name)

    def test_operations_on_one_array_stay_those_of_jax_lax(self):
        shared = {name for name in ops.__all__ if hasattr(jax.lax, name)}
        ours = {name for name in shared if getattr(lax, name) is getattr(ops, name)}
        # These names of jax.lax stay functions of JAX, most of them on one array.
        others = {"broadcast", "reduce", "gather", "scatter"}
        self.assertEqual(shared - ours, others & {*dir(jax.lax)})

    def test_enumerations_of_cpp(self):
        for enum, names in (
            (contract.Op, [row[0] for row in _core.OPERATIONS]),
            (contract.ReduceOp, _core.REDUCE_OPS),
        ):
            self.assertEqual([member.name.lower() for member in enum], list(names))
            self.assertEqual([*enum], [*range(len(names))])
        for dtype in contract.DTYPES:
            self.assertEqual(jnp.dtype(dtype).name, dtype)

    def test_custom_calls_of_cpp(self):
        ranks = np.zeros((1, 2))
        made = contract.attributes(
            "psum", contract.Op.ALL_REDUCE, ranks, generation=0, program="jit_f"
        )
        types = {name: _attribute_type(value) for name, value in made.items()}
        source = (_ROOT / "cc" / "ffi" / "call" / "call_site.cc").read_text()
        listed = re.findall(r"^  V\((\S+), (\w+)\)", source, re.MULTILINE)
        self.assertEqual(types, {name: _ATTRIBUTE_TYPES[kind] for kind, name in listed})
        targets = {value for name, value in vars(contract).items() if name.endswith("_TARGET")}
        modules = [_ROOT / "cc" / folder / "module.cc" for folder in ("python", "python_cuda")]
        text = "".join(module.read_text() for module in modules)
        self.assertEqual(targets, {*re.findall(r'{"(jax_cxl_\w+)", &jax_cxl_', text)})

    def test_requirements_of_the_build(self):
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
        development = project["project"]["optional-dependencies"]["dev"]
        for requirement in project["build-system"]["requires"]:
            if not requirement.startswith("jaxlib"):  # JAX brings one.
                self.assertIn(requirement, development)

    def test_every_error_is_public_or_a_kind_of_one_that_is(self):
        errors = importlib.import_module("jax_cxl.errors")
        for kind in {*errors.BY_CODE.values(), *errors.BY_CODE_IN_PROGRAM.values()}:
            if issubclass(kind, errors.CxlError):
                public = [base for base in kind.__mro__ if base.__name__ in jax_cxl.__all__]
                self.assertNotEmpty(public, kind)


def _attribute_type(value):
    return "text" if isinstance(value, str) else f"{value.dtype}{'s' * np.ndim(value)}"


if __name__ == "__main__":
    absltest.main()
