"""mkdocs hook: lets mkdocs make the site from a clone in which nothing has been compiled.

Other hooks import commands and operations, to show their help and their signatures. None of these
hooks calls the native module, so a mock object can take its place.
"""

import pathlib
import sys
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import jax_cxl
from jax_cxl import _native

if _native.problem() is not None:
    stand_in = mock.MagicMock(__spec__=None)
    sys.modules[f"jax_cxl.{_native.MODULE}"] = stand_in
    setattr(jax_cxl, _native.MODULE, stand_in)
