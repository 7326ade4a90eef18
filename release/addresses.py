"""Sets the address of the repository wherever it is written.

    python release/addresses.py https://forge.example/group/jax_cxl

pyproject.toml contains the addresses of the project, and the site takes them from there. This
command changes them in pyproject.toml and in the documents that name them. `--docs URL` is the
address of the site, by default the address of the repository with /docs.
"""

import argparse
import pathlib
import sys
import tomllib

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# The files that name the repository or the site. tests/jobs/release checks that no other does.
FILES = (
    "pyproject.toml",
    "README.md",
    "CITATION.cff",
    "docs/start/install.md",
    "docs/notebooks/first_program.ipynb",
)


def current(root: pathlib.Path) -> tuple[str, str]:
    """Returns the addresses of the repository and of the site."""
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]
    return urls["Source"], urls["Documentation"]


def set_addresses(root: pathlib.Path, source: str, docs: str) -> list[str]:
    """Replaces the addresses of the repository and of the documentation site in all `FILES`.

    Args:
      root: the folder of the repository.
      source: the new address of the repository.
      docs: the new address of the site.

    Returns:
      The files that have changed.

    Raises:
      ValueError: an address does not begin with https://, or has a space, a quote or a final slash.
    """
    for address in (source, docs):
        name = address.removeprefix("https://")
        if name == address or not name or set(name) & set(" \"'`<>") or name.endswith("/"):
            raise ValueError(f"{address!r} is not an address such as https://forge.example/jax_cxl")
    old_source, old_docs = current(root)
    changed = []
    for name in FILES:
        before = (root / name).read_text()
        # The old address of the site may begin with the old address of the repository. So first
        # split the text at the old address of the site, and replace the repository's address only
        # in the pieces.
        parts = before.split(old_docs)
        after = docs.join(part.replace(old_source, source) for part in parts)
        if after != before:
            (root / name).write_text(after)
            changed.append(name)
    return changed


def main(arguments: list[str]) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="address of the repository")
    parser.add_argument("--docs", help="address of the site (default: the repository's with /docs)")
    options = parser.parse_args(arguments)
    try:
        changed = set_addresses(_ROOT, options.source, options.docs or f"{options.source}/docs")
    except ValueError as error:
        parser.error(str(error))
    print("\n".join(changed) or "nothing changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
