"""Makes a version: the changelog, the number, a commit and a tag.

    python release/version.py 0.2.0

The section [Unreleased] of CHANGELOG.md becomes the section of the version, with the date.
pyproject.toml and CITATION.cff get the number. Nothing is pushed.
"""

import argparse
import datetime
import pathlib
import re
import subprocess
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?")
_UNRELEASED = "## [Unreleased]\n"


def make(root: pathlib.Path, version: str, date: str) -> None:
    """Makes a version in a clone that has no uncommitted changes.

    Args:
      root: the folder of the repository.
      version: such as "0.2.0" or "0.2.0rc1".
      date: such as "2026-12-01".

    Raises:
      ValueError: the version is malformed, or is not newer than all tags; the clone has changes; or
        the changelog has nothing about the version. In all these cases nothing is written.
    """
    key = _key(version)
    if key is None:
        raise ValueError(f"{version!r} is not a version such as 0.2.0 or 0.2.0rc1")
    if changes := _git(root, "status", "--porcelain"):
        raise ValueError(f"the clone has changes, commit them first:\n{changes}")
    tags = _git(root, "tag", "--list", "v*").split()
    newest = max(tags, key=lambda tag: _key(tag[1:]) or (), default=None)
    if newest is not None and key <= (_key(newest[1:]) or ()):
        raise ValueError(f"{version} is not newer than {newest}")
    written = {
        "CHANGELOG.md": _changelog((root / "CHANGELOG.md").read_text(), version, date),
        "pyproject.toml": _replaced(
            root / "pyproject.toml", r'(?<=^version = ")[^"]*|(?<=_cuda13==)[^"]*', version, 2
        ),
        "CITATION.cff": _replaced(
            root / "CITATION.cff",
            r"^version: .*(\ndate-released: .*)?",
            f"version: {version}\ndate-released: {date}",
        ),
    }
    for name, text in written.items():
        (root / name).write_text(text)
    _git(root, "commit", "--quiet", "--all", "--message", f"Version {version}")
    _git(root, "tag", "--annotate", f"v{version}", "--message", f"jax_cxl {version}")


def _key(version: str) -> tuple[int, ...] | None:
    """Returns a key that sorts versions, 0.2.0rc1 before 0.2.0; None if `version` is malformed."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return None
    return (*map(int, match.groups()[:3]), int(match[4]) if match[4] else 1 << 30)


def _changelog(text: str, version: str, date: str) -> str:
    head, found, rest = text.partition(_UNRELEASED)
    body, mark, older = rest.partition("\n## [")
    if not found or "\n- " not in body:
        raise ValueError("CHANGELOG.md has no entries under [Unreleased]")
    return f"{head}{_UNRELEASED}\n## [{version}] - {date}\n{body}{mark}{older}"


def _replaced(path: pathlib.Path, pattern: str, text: str, places: int = 1) -> str:
    after, count = re.subn(pattern, text, path.read_text(), flags=re.MULTILINE)
    if count != places:
        raise ValueError(f"{path.name} has the version in {count} places, not {places}")
    return after


def _git(root: pathlib.Path, *arguments: str) -> str:
    ended = subprocess.run(
        ["git", *arguments], cwd=root, check=True, capture_output=True, text=True
    )
    return ended.stdout.strip()


def main(arguments: list[str]) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", help="such as 0.2.0 or 0.2.0rc1")
    options = parser.parse_args(arguments)
    try:
        make(_ROOT, options.version, datetime.date.today().isoformat())
    except ValueError as error:
        parser.error(str(error))
    print(f"git push --atomic origin main v{options.version}   # publishes it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
