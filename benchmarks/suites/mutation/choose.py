"""Which tests run for a change."""

import ast
import collections
import dataclasses
import json
import pathlib

from cosmic_ray.work_item import MutationSpec


@dataclasses.dataclass(frozen=True)
class Part:
    """Folders of the package whose tests lie together.

    Attributes:
      folders: the folders, below jax_cxl/.
      tests: folders of the tests that run in one process.
      jobs: files with tests of jobs, which take longer.
    """

    folders: tuple[str, ...]
    tests: tuple[str, ...]
    jobs: tuple[str, ...]


PARTS = (
    Part(
        ("ops", "_lowering"),
        ("tests/ops", "tests/moe", "tests/takeover"),
        tuple(
            f"tests/jobs/{name}_test.py"
            for name in ("transformations", "levels", "start_done", "ordering", "groups", "moe")
        ),
    ),
    Part(
        ("_store",),
        ("tests/store", "tests/snapshots"),
        ("tests/jobs/snapshots_test.py", "tests/jobs/published_test.py"),
    ),
    Part(
        ("_takeover",),
        ("tests/takeover",),
        ("tests/jobs/takeover_test.py", "tests/jobs/groups_test.py"),
    ),
)


def part_of(module: pathlib.Path) -> Part:
    """Returns the part that a module belongs to."""
    return next(part for part in PARTS if module.parts[1] in part.folders)


class Covered:
    """Which tests execute which line.

    Attributes:
      seconds: duration of each test.
    """

    def __init__(self, files: list[pathlib.Path]):
        """Reads what the plugin mutation.covering wrote."""
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
        """Returns the tests of the statement that a change is in, the most telling ones first.

        Tests of different files tell more than those of one file. So the quickest of each file
        come first, then the second of each file. For a statement that only the import executes,
        these are the tests of the whole module.

        Args:
          spec: the change.
          most_seconds: the tests that follow when this time is over are left out.
        """
        module = self._tests[str(spec.module_path)]
        lines = _statement(spec.module_path.read_text(), spec.start_pos[0])
        found = {test for line in lines for test in module.get(line, ())}
        found = found or {test for tests in module.values() for test in tests}
        by_file = collections.defaultdict(list)
        for test in sorted(found, key=lambda test: self.seconds[test]):
            by_file[test.partition("::")[0]].append(test)
        turns = [(turn, test) for tests in by_file.values() for turn, test in enumerate(tests)]
        chosen, total = [], 0.0
        for _, test in sorted(turns, key=lambda each: (each[0], self.seconds[each[1]])):
            if total < most_seconds:
                chosen.append(test)
                total += self.seconds[test]
        return chosen


def _statement(source: str, line: int) -> range:
    """Returns the lines of the smallest statement around a line, without its body."""
    best = range(line, line + 1)
    size = len(source)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt) or node.end_lineno is None:
            continue
        body = getattr(node, "body", None)
        end = body[0].lineno - 1 if body else node.end_lineno
        if node.lineno <= line <= end and end - node.lineno < size:
            best, size = range(node.lineno, end + 1), end - node.lineno
    return best
