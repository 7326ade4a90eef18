"""Makes every Python under `bazel test` import Bazel's jax_cxl.

An editable install puts a finder before sys.path. Without this file, tests would import its
jax_cxl.
"""

import sys

sys.meta_path[:] = [
    finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable_")
]
