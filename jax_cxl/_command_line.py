"""How a results file says by which command it was made."""

import os.path
import re
import shlex
from collections.abc import Sequence


def recorded(program: str, arguments: Sequence[str]) -> str:
    """Returns a command line without this machine's folders, which mean nothing elsewhere.

    Of absolute paths the last part is left, also behind the "=" of an option.
    """
    kept = (re.sub(r"(?<![^=])/.*", lambda path: os.path.basename(path[0]), a) for a in arguments)
    return f"{program} {shlex.join(kept)}".strip()
