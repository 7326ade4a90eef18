"""Runs one process of a JAX test of several processes.

In the first process, JAX's test framework starts the other processes, with the same program as the
first one. So all processes run this program.
"""

import json
import os
import pathlib
import re
import sys
import types

# Environment variables by which jax_suite.py passes its settings, because JAX's test parses all
# options of the command line.
FILE, FOLDER, TAKE_OVER = (
    *("JAX_SUITE_FILE", "JAX_SUITE_FOLDER"),
    "JAX_SUITE_TAKE_OVER",
)


def main() -> None:
    """Runs the test in this process."""
    found = re.search(r"--multiprocess_test_worker_id=(\d+)", " ".join(sys.argv))
    if found is not None:
        folder = pathlib.Path(os.environ[FOLDER])
        os.environ["XML_OUTPUT_FILE"] = str(folder / f"{found[1]}.xml")
        if os.environ[TAKE_OVER] == "1":
            import jax_cxl

            jax_cxl.replace_collectives(local=True).start()
    try:
        _run(os.environ[FILE])
    finally:
        if found is not None:
            _write_stats(folder / f"{found[1]}.json")


def _run(file: str) -> None:
    """Runs a program as `runpy` does, except that `sys.argv` still names this file."""
    program = types.ModuleType("__main__")
    program.__file__ = file
    sys.modules["__main__"] = program
    code = compile(pathlib.Path(file).read_text(), file, "exec")
    exec(code, program.__dict__)


def _write_stats(path: pathlib.Path) -> None:
    import jax_cxl

    stats = jax_cxl.stats()
    taken, left = stats.collectives_taken, stats.collectives_left
    path.write_text(json.dumps({"taken": taken, "left": left, "calls": stats.calls}))


if __name__ == "__main__":
    main()
