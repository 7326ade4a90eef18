"""Makes every Python under `bazel test` import Bazel's jax_cxl.

An editable install adds an import hook that Python asks before sys.path. Without this file, tests
would import jax_cxl from the checkout that was installed.
"""

import sys

sys.meta_path[:] = [
    finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable_")
]
