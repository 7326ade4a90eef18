"""Chooses the tests that run for a change."""

import ast
import collections
import dataclasses
import json
import pathlib
from collections.abc import Collection, Mapping, Sequence

from cosmic_ray.work_item import MutationSpec

# The first tests to run are the quickest tests of this many files, one of each.
_FILES = 3
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Part:
    """Folders of the package that have the same tests.

    Attributes:
      folders: the folders, below jax_cxl/.
      tests: folders of the tests that run in one process.
      jobs: arguments of pytest that run the tests of jobs, which take longer.
    """

    folders: tuple[str, ...]
    tests: tuple[str, ...]
    jobs: tuple[str, ...]


PARTS = (
    Part(
        ("ops", "_lowering"),
        ("tests/ops", "tests/moe", "tests/takeover", "tests/gpu"),
        tuple(
            f"tests/jobs/{name}_test.py"
            for name in (
                "host",
                "start_done",
                "ordering",
                "groups",
                "levels",
                "moe",
                "transformations",
            )
        ),
    ),
    Part(
        ("_store",),
        ("tests/store", "tests/snapshots", "tests/tier"),
        ("tests/jobs/published_test.py", "tests/jobs/snapshots_test.py", "-k=not overwritten"),
    ),
    Part(("_table",), ("tests/tables",), ("tests/jobs/tables_test.py",)),
    Part(("_tier",), ("tests/tier",), ("tests/jobs/pooled_test.py",)),
    Part(
        ("_takeover",),
        ("tests/takeover",),
        ("tests/jobs/takeover_test.py", "tests/jobs/groups_test.py"),
    ),
)


def part_of(module: pathlib.Path) -> Part:
    """Returns the Part in whose folders a module lies."""
    return next(part for part in PARTS if module.parts[1] in part.folders)


class Covered:
    """Knows which tests execute which line.

    Attributes:
      seconds: duration of each test.
    """

    def __init__(self, files: list[pathlib.Path]):
        """Reads the files that the plugin covering.py has written."""
        self.seconds: dict[str, float] = {}
        self._tests: dict[str, dict[int, list[str]]] = collections.defaultdict(
            lambda: collections.defaultdict(list)
        )
        for file in files:
            found = json.loads(file.read_text())
            self.seconds |= found["seconds"]
            for test, modules in found["lines"].items():
                for module, lines in modules.items():
                    for line in lines:
                        self._tests[module][line].append(test)

    def tests_of(self, spec: MutationSpec, most_seconds: float) -> list[str]:
        """Returns tests that execute the changed statement.

        Those that are most likely to notice the change come first.

        The quickest test of each of three files comes first. Then come tests that execute lines of
        the same function that few other tests execute, because such tests cover more than the usual
        case.

        Args:
          spec: the change.
          most_seconds: once the chosen tests take this long, no more are added.
        """
        module = self._tests[str(spec.module_path)]
        source = ast.parse(spec.module_path.read_text())
        near, lines = _around(source, spec.start_pos[0], module)
        found = {test for line in lines for test in module.get(line, ())}
        if not near:  # The module has no functions.
            folders = part_of(spec.module_path).tests
            found = {test for test in self.seconds if test.startswith(folders)}
        telling: dict[str, float] = collections.defaultdict(float)
        for line in near:
            for test in module.get(line, ()):
                telling[test] += 1 / len(module[line])
        by_time = sorted(found, key=lambda test: (self.seconds[test], test))
        quick: dict[str, str] = {}
        for test in by_time:
            quick.setdefault(test.partition("::")[0], test)
        best = sorted(by_time, key=lambda test: -telling[test] / (0.2 + self.seconds[test]))
        chosen, total = [], 0.0
        for test in dict.fromkeys([*quick.values()][:_FILES] + best):
            if total < most_seconds:
                chosen.append(test)
                total += self.seconds[test]
        return chosen


def _around(
    module: ast.Module, line: int, tests: Mapping[int, Sequence[str]]
) -> tuple[Collection[int], Collection[int]]:
    """Returns the lines of the function around `line`, and the lines whose tests are to run.

    For a line in the body of a function, the second set has the lines of its whole statement. The
    import of the module executes all other lines, in whichever test imports it first. So for
    such a line the second set has the body that depends on the line: that of its function or class.
    For a line outside of functions and classes, it has the bodies of all functions.

    If no test seems to execute a function, XLA may call it in a thread that is not observed. Then
    the second set has the body of the class or function around it.
    """
    every = [n for n in ast.walk(module) if isinstance(n, _Function | ast.ClassDef)]
    bodies = {n for each in every if isinstance(each, _Function) for n in _body(each)}
    around = [n for n in every if _head(n) <= line <= _end(n)]
    for node in sorted(around, key=_head, reverse=True):
        body = bodies.intersection(_body(node))
        if any(map(tests.get, body)):
            inside = isinstance(node, _Function) and line in body
            return body, _statement(node, line) if inside else body
    return bodies, bodies


def _head(node: ast.stmt) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])


def _end(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> range:
    return range(node.body[0].lineno, _end(node) + 1)


def _statement(function: ast.stmt, line: int) -> range:
    """Returns the lines of the smallest statement around a line, without the statement's body."""
    found = []
    for node in ast.walk(function):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            lines = range(node.lineno, body[0].lineno if body else _end(node) + 1)
            found += [lines] if line in lines else []
    return min(found, key=len, default=range(line, line + 1))
