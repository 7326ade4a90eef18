"""Makes processes of the tests import jax_cxl from the copy, not from an editable installation."""

import sys

sys.meta_path[:] = [
    finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"
]
