"""Set-up of all tests: eight CPU devices, each of which is a rank, and their pool.

With `JAX_CXL_TEST_POOL=incoherent`, `flush` or `uncached`, the tests and the jobs that they start
use a pool of this kind. `JAX_CXL_TEST_SEED` seeds the random moves of cache lines in an incoherent
pool. The C++ tests read the same two variables (cc/testing/pool/chosen_pool.h). Incoherent pools
need the module `_testing` in tests/interpose, which the build of the C++ tests makes
(CONTRIBUTING.md).
"""

import collections
import gc
import os
import runpy
import signal
import sys
from typing import Any

import jax
import job
import pytest

_POOLS = {
    "coherent": "shm:",
    "flush": "shm:?coherence=flush",
    "uncached": "shm:?coherence=uncached",
    "incoherent": "shm:",
}
# Tests that JAX_CXL_TEST_POOL does not affect:
_WITHOUT_THE_CHOSEN_POOL = [
    # These choose their pools themselves.
    "jobs/failures/deaths_test.py",
    "jobs/failures/ending_test.py",
    "jobs/incoherent_test.py",
    "jobs/docs/pages_test.py",
    "jobs/initialize_test.py",
    "jobs/failures/survivors_test.py",
    "jobs/two_hosts/doctor_test.py",
    "jobs/two_hosts/identity_test.py",
    "jobs/two_hosts/mesh_test.py",
    # These open no pool.
    "tools/device_time_test.py",
    "gpu/compiled_for_gpus_test.py",
    "jobs/launch/output_test.py",
    "jobs/launch/launch_test.py",
    "gpu/platform_test.py",
    "tools/pool_uri_test.py",
    "tools/simulate_test.py",
    # This file needs GPUs.
    "gpu/cuda_test.py",
]

# XLA_FLAGS could set the number of devices too, but processes that tests start would inherit it.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

# Tests spend most of their time on compiling the code around the collectives, here and in the jobs
# that they start. Without most optimizations XLA compiles it faster.
jax.config.update("jax_disable_most_optimizations", True)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# Background processes of a shell ignore SIGINT, and processes under nohup ignore SIGHUP. The jobs
# that tests start would inherit this, but tests send them these signals.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

if chosen := os.environ.get("JAX_CXL_TEST_POOL"):
    os.environ["JAX_CXL_POOL"] = _POOLS[chosen]
    collect_ignore = _WITHOUT_THE_CHOSEN_POOL
    if chosen == "incoherent":
        # These variables are for this process, and for processes that tests start.
        seed = int(os.environ.get("JAX_CXL_TEST_SEED", "0"))
        leave_out = os.environ.get("JAX_CXL_TEST_LEAVE_OUT", "")
        os.environ.update(job.incoherent_environment(seed, leave_out))
        sys.path.append(str(job.INTERPOSE))
        runpy.run_path(str(job.INTERPOSE / "sitecustomize.py"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks cases of a test with `sample(n)` as long: all but the first and every nth after it.

    If several processes share the tests, the files with jobs come first, because they take longest.
    """
    cases: collections.Counter[int] = collections.Counter()
    for item in items:
        if mark := item.get_closest_marker("sample"):
            if cases[id(mark)] % mark.args[0]:
                item.add_marker("long")
            cases[id(mark)] += 1
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: "jobs" not in item.path.parts)


_LEFT_OUT = pytest.StashKey[int]()


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Counts the long tests that `-m "not long"` in pyproject.toml leaves out."""
    if items:
        count = sum(item.get_closest_marker("long") is not None for item in items)
        _count_left_out(items[0].config, count)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over the count of long tests that a pytest-xdist worker has left out.

    All workers have the same count, because each of them collects all tests.
    """
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def _count_left_out(config: pytest.Config, count: int) -> None:
    config.stash[_LEFT_OUT] = config.stash.get(_LEFT_OUT, 0) + count
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = config.stash[_LEFT_OUT]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints how many long tests were left out."""
    if count := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(
            f"LEFT OUT {count} long tests: `python -m pytest -m long` runs them"
        )


def pytest_collection_finish() -> None:
    """Hides imported objects from the garbage collector, to save a twelfth of the tests' time."""
    gc.freeze()
