"""Puts an emulated cache between this process and its pools, in each process of a test run.

If `JAX_CXL_TEST_POOL=incoherent`, tests/conftest.py imports this file. It also puts this folder on
PYTHONPATH, so that processes that the tests start import the file too. The build of the C++ tests
makes the module `_testing` in this folder; CONTRIBUTING.md has the command.
"""

import os

import _testing

from jax_cxl import _core

_core.interpose(
    _testing.incoherent_hosts(
        int(os.environ.get("JAX_CXL_TEST_SEED", "0")), os.environ.get("JAX_CXL_TEST_LEAVE_OUT", "")
    )
)
