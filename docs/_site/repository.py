"""mkdocs hook: takes the site's links to the repository, and the version, from pyproject.toml.

So `mkdocs.yml` contains no address of the repository. If the project moves to another address, only
`[project.urls]` of pyproject.toml changes (RELEASING.md has the command).
"""

import pathlib
import tomllib
from typing import Any

import outside

_ROOT = pathlib.Path(__file__).parents[2]


def on_config(config: Any) -> Any:
    """Sets the addresses, and the line with the version, in the configuration of mkdocs."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    urls = project["urls"]
    config.site_url = urls["Documentation"] + "/"
    config.repo_url = urls["Source"]
    config.repo_name = project["name"]
    config.copyright = f"{project['name']} {project['version']}, {project['license']}"
    return config


def on_pre_page(page: Any, config: Any, **_: Any) -> Any:
    """Makes the link "edit this page" lead to the file in the repository that the page shows."""
    uri = page.file.src_uri
    page.edit_url = None
    if not uri.startswith("source/"):
        page.edit_url = f"{config.repo_url}/edit/main/{outside.source_of(uri)}"
    return page
