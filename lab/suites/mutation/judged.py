"""Reads the mutants that a person has judged to be equivalent: no test can notice them."""

import dataclasses
import pathlib
import tomllib

from cosmic_ray.work_item import MutationSpec, WorkResult

FILE = pathlib.Path(__file__).parent / "equivalent.toml"


@dataclasses.dataclass(frozen=True)
class Change:
    """What a mutant changes.

    Attributes:
      module: path of the module.
      before: the lines of the original that the mutant changes, without spaces at their ends.
      after: these lines in the mutant.
    """

    module: str
    before: str
    after: str

    @classmethod
    def of(cls, spec: MutationSpec, result: WorkResult) -> "Change":
        """Returns what a mutant changes, read from the diff in its result."""
        diff = (result.diff or "").split("\n")
        lines = [line for line in diff if not line.startswith(("---", "+++"))]

        def marked(mark: str) -> str:
            return "\n".join(line[1:].strip() for line in lines if line.startswith(mark))

        return cls(str(spec.module_path), marked("-"), marked("+"))


def equivalent() -> dict[Change, str]:
    """Returns the equivalent mutants of equivalent.toml, and why no test can notice each."""
    found = tomllib.loads(FILE.read_text()).get("mutant", [])
    return {
        Change(each["module"], each["before"], each["after"]): each["because"] for each in found
    }
