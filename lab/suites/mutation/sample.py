"""A sample of single changes to the package's Python modules, made by cosmic-ray's operators."""

import ast
import hashlib
import pathlib
from collections.abc import Iterator, Sequence

from cosmic_ray import ast as parsed, mutating, plugins
from cosmic_ray.ast import ast_query
from cosmic_ray.work_item import MutationSpec, WorkItem


def sample(modules: Sequence[pathlib.Path], count: int, seed: int) -> list[WorkItem]:
    """Returns changes at random places of the modules, at most one at each place.

    A larger sample of the same modules and seed begins with the smaller one. When the modules
    change, most of the sample stays, because the choice of a place depends only on the name of its
    definition and the text of its line. The function draws places and then a change at each place.
    If it drew among all changes, comparisons would be drawn too often, because cosmic-ray offers up
    to eleven changes of each comparison.

    Args:
      modules: paths of the modules.
      count: how many changes.
      seed: the seed of the random choice.
    """
    places: dict[bytes, list[MutationSpec]] = {}
    for module in sorted(modules):
        lines = module.read_text().split("\n")
        for spec in _all_of(module):
            line, column = spec.start_pos
            text = lines[line - 1]
            in_line = (text.strip(), column - len(text) + len(text.lstrip()))
            places.setdefault(_hash(seed, module, spec.definition_name, *in_line), []).append(spec)
    found: list[WorkItem] = []
    for place, specs in sorted(places.items()):
        spec = min(specs, key=lambda each: _hash(place, each.operator_name))
        if len(found) < count and changes_behavior(spec):
            name = f"{spec.module_path}:{spec.start_pos[0]}:{spec.start_pos[1]}"
            kind = spec.operator_name.removeprefix("core/")
            found.append(WorkItem.single(job_id=f"{name} {kind}", mutation=spec))
    return found


def _hash(*of: object) -> bytes:
    return hashlib.sha256(repr([str(each) for each in of]).encode()).digest()


def changes_behavior(spec: MutationSpec) -> bool:
    """Returns whether the changed module is valid Python, and does something else than before."""
    before = spec.module_path.read_text()
    operator = plugins.get_operator(spec.operator_name)(**spec.operator_args)
    after = mutating.mutate_code(before, operator, spec.occurrence)
    try:
        return after is not None and _without_annotations(before) != _without_annotations(after)
    except SyntaxError:
        return False


def _all_of(module: pathlib.Path) -> Iterator[MutationSpec]:
    nodes = list(parsed.ast_nodes(parsed.get_ast_from_path(module)))
    for name in plugins.operator_names():
        operator_class = plugins.get_operator(name)
        if operator_class.arguments():
            continue
        operator = operator_class()
        positions = (
            (node, start, end) for node in nodes for start, end in operator.mutation_positions(node)
        )
        for occurrence, (node, start, end) in enumerate(positions):
            definition = ast_query.ASTQuery(node).get_definition_name()
            yield MutationSpec(
                module_path=module,
                operator_name=name,
                occurrence=occurrence,
                start_pos=start,
                end_pos=end,
                definition_name=definition,
            )


def _without_annotations(source: str) -> str:
    """Returns the syntax tree as text, without annotations, which only type checkers use."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)
