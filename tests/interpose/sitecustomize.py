"""Puts an emulated cache between this process and its pools, in each process of a test run.

tests/conftest.py imports this file where `JAX_CXL_TEST_POOL=incoherent`, and puts its folder on
PYTHONPATH, so that the processes which the tests start import it too. The module `_testing` beside
it belongs to the build of the C++ tests; CONTRIBUTING.md has the command.
"""

import os

import _testing

from jax_cxl import _core

_core.interpose(
    _testing.incoherent_hosts(
        int(os.environ.get("JAX_CXL_TEST_SEED", "0")), os.environ.get("JAX_CXL_TEST_LEAVE_OUT", "")
    )
)
