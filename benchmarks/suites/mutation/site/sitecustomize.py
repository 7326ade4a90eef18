"""Makes processes of the tests import the copy, not the checkout of an editable installation."""

import sys

sys.meta_path[:] = [
    finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"
]
