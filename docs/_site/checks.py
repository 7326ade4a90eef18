"""mkdocs hook: warns about faults in pages that mkdocs itself does not notice."""

import re
from typing import Any

from mkdocs.plugins import get_plugin_logger

_LOG = get_plugin_logger("checks")
_HEADING = re.compile(r'<h\d id="([^"]*)" class="doc doc-heading">(.*?)</h\d>', re.DOTALL)
_NOTE = re.compile(r'<span class="filename">Not run')


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Warns about faults in a page's HTML, and returns it unchanged."""
    uri = page.file.src_uri
    if uri.startswith("reference/"):
        for name, heading in _HEADING.findall(html):
            if "doc-symbol-module" in heading:
                # The page is meant to show the function, but found the module of the same name.
                _LOG.warning(f"{uri}: {name} is shown as a module, not as a function")
    if _NOTE.search(html):
        _LOG.warning(f"{uri}: a title says that the tests do not run a block: make it a comment")
    return html
