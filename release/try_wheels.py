"""Installs wheels in fresh environments, tests them, and writes what runs with what.

    python release/try_wheels.py dist

The program makes an environment without a compiler for each pair of versions of Python and JAX in
`_VERSIONS`, including the newest JAX, and installs the matching wheel there. The tests run from a
copy of the folder tests/, so that they import the installed package. If there is a wheel for GPUs,
it is then installed too, and its module is imported. The results are written to a table in
docs/start/compatibility.md.
"""

import argparse
import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PAGE = _ROOT / "docs/start/compatibility.md"
_BEGIN, _END = "<!-- release/try_wheels.py: begin -->", "<!-- release/try_wheels.py: end -->"
# Python -> versions of JAX; "" is the newest one. JAX 0.10 is the last for Python 3.11.
_VERSIONS = {
    "3.11": ("0.10.2",),
    "3.12": ("0.10.2", "0.11.2", ""),
    "3.13": ("0.10.2", "0.11.2", ""),
}
_NEEDED = ("absl-py", "hypothesis", "jax_cxl[store]", "optax", "pytest", "pytest-timeout", "pyyaml")
# Tests that need no compiler and exercise each part of a wheel: operations, jobs that start, and
# jobs whose collectives are replaced.
_TESTS = (
    "ops/psum_test.py",
    "ops/all_gather_test.py",
    "jobs/initialize_test.py",
    "jobs/takeover_test.py",
)


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 1 if a test fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=pathlib.Path, help="folder with the wheels")
    parser.add_argument("--tests", nargs="*", default=_TESTS, help="files or folders in tests/")
    parser.add_argument("--pythons", nargs="*", default=list(_VERSIONS))
    options = parser.parse_args(arguments)
    rows = []
    for python in options.pythons:
        for jax in _VERSIONS[python]:
            rows.append(_try(options.dist.resolve(), python, jax, options.tests))
            print(rows[-1], flush=True)
    _write(rows, options.dist, options.tests)
    return int(any("failed" in row for row in rows))


def _try(dist: pathlib.Path, python: str, jax: str, tests: Sequence[str]) -> str:
    """Tests the wheel with these versions of Python and JAX; returns its row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        interpreter = folder / "venv/bin/python"
        subprocess.run(["uv", "venv", "-q", "--python", python, folder / "venv"], check=True)
        wanted = [f"jax=={jax}"] if jax else ["jax"]
        install = ["uv", "pip", "install", "-q", "--python", interpreter, "--find-links", dist]
        # Never install from sources, because that needs a compiler. Never install an earlier wheel
        # of the same version, which uv may have cached.
        install += ["--only-binary", "jax_cxl", "--refresh-package", "jax_cxl", *_NEEDED, *wanted]
        subprocess.run(install, check=True)
        shutil.copytree(_ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("*.so"))
        for each in ("examples", "benchmarks", "lab", "pyproject.toml", "README.md", "docs"):
            (folder / each).symlink_to(_ROOT / each)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX", "PYTHON"))}
        environment |= {"JAX_PLATFORMS": "cpu", "CXX": "/bin/false", "CC": "/bin/false"}
        environment["PATH"] = f"{folder}/venv/bin:{environment['PATH']}"
        command = [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"tests/{each}" for each in tests]
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        lines = ended.stdout.strip().splitlines() or [ended.stderr.strip()[-200:]]
        if ended.returncode:
            print("\n".join(lines[-40:]), file=sys.stderr)
        wheel = _ask(interpreter, _WHICH_WHEEL)
        versions = _ask(interpreter, "import jax, sys; print(jax.__version__)")
        # pytest may fail after its last test has passed, so its exit status counts too.
        ran = ("failed: " if ended.returncode else "") + _counts(lines[-1])
        ran += _with_gpu_wheels(dist, python, interpreter)
    return f"| {python} | {versions} | `{wheel}` | {ran} |"


def _with_gpu_wheels(dist: pathlib.Path, python: str, interpreter: pathlib.Path) -> str:
    """Tries the wheels for GPUs that suit this Python, and returns the outcome."""
    tag = "cp311-cp311" if python == "3.11" else "cp312-abi3"
    ran = ""
    for wheel in sorted(dist.glob("jax_cxl_cuda*.whl")):
        if f"-{tag}-" in wheel.name:
            # `--no-deps` leaves out the packages of CUDA, which only a machine with GPUs needs.
            command = ["uv", "pip", "install", "-q", "--python", interpreter, "--no-deps", wheel]
            subprocess.run(command, check=True)
            ended = subprocess.run([interpreter, "-c", "import jax_cxl._cuda"])
            name = wheel.name.partition("-")[0]
            ran += f"; `{name}` {'failed to import' if ended.returncode else 'imported'}"
    return ran


_WHICH_WHEEL = """
import importlib.metadata
text = importlib.metadata.distribution("jax_cxl").read_text("WHEEL")
print(*sorted(line.split(" ")[1] for line in text.splitlines() if line.startswith("Tag: "))[-1:])
"""


def _ask(interpreter: pathlib.Path, program: str) -> str:
    command = [interpreter, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _counts(summary: str) -> str:
    """Returns "81 passed, 2 skipped" from the last line of pytest."""
    return ", ".join(re.findall(r"\d+ (?:passed|failed|skipped|errors?)", summary)) or "error"


def _write(rows: Sequence[str], dist: pathlib.Path, tests: Sequence[str]) -> None:
    date = datetime.date.today().isoformat()
    files = [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]
    table = [
        f"The wheels of {date}, each in a fresh environment without a compiler, on CPUs:",
        "",
        "| Python | JAX | wheel | tests |",
        "|---|---|---|---|",
        *rows,
        "",
        f"The tests were {', '.join(f'`tests/{each}`' for each in tests)}.",
        "",
        "| file | MB |",
        "|---|---|",
        *(f"| `{path.name}` | {path.stat().st_size / 1e6:.2f} |" for path in sorted(files)),
    ]
    page = _PAGE.read_text()
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _PAGE.write_text("\n".join([before + _BEGIN, *table, _END]) + after)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
