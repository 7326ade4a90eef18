"""Makes `jax.distributed.initialize()` find the number of ranks and the rank of this process.

JAX takes both from the first `ClusterEnv` in its list that detects its environment. The launcher's
`ClusterEnv` has to exist before the script calls `initialize`. But the launcher must not import
JAX, because the script may set XLA_FLAGS or JAX_PLATFORMS first. So an import hook defines the
class when the script imports JAX, right after JAX has defined the base class. In JAX's list the
class then comes before the classes of Slurm, Open MPI and Kubernetes, so that JAX finds it even
inside their allocations. The same hook defines classes for the MPI launchers that JAX does not know
(mpi.py).
"""

import functools
import os
import sys
import types
from importlib import abc, machinery, util
from typing import Any

from jax_cxl._job import variables
from jax_cxl._job.launched import environment, mpi

_CLUSTER_MODULE = "jax._src.clusters.cluster"


@functools.cache
def install() -> None:
    """Registers the launchers with JAX at once, or when JAX is imported."""
    if _CLUSTER_MODULE in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(abc.MetaPathFinder):
    """Makes the loader of JAX's cluster module register the launchers, once."""

    def find_spec(
        self, fullname: str, path: Any, target: types.ModuleType | None = None
    ) -> machinery.ModuleSpec | None:
        if fullname != _CLUSTER_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader = spec.loader

            def exec_module(module: types.ModuleType) -> None:
                vars(loader).pop("exec_module")  # A loader may load other modules too.
                loader.exec_module(module)
                _register()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _register() -> None:
    """Defines the cluster environments, and puts them first in JAX's list."""
    from jax._src.clusters.cluster import ClusterEnv

    class LaunchCluster(ClusterEnv):
        """Ranks of `python -m jax_cxl.launch`.

        The class has no local process id. With one, JAX would make only the GPU of that number
        visible, but a rank may have several GPUs. The launcher sets JAX_LOCAL_DEVICE_IDS instead.
        """

        name: str = "jax_cxl"
        is_env_present = staticmethod(environment.launched)
        get_process_id = mpi.number(variables.RANK)

        @staticmethod
        def get_coordinator_address(
            timeout_secs: int | None, override_coordinator_port: str | None
        ) -> str:
            return os.environ[variables.COORDINATOR]

        @staticmethod
        def get_process_count() -> int:
            environment.note_connecting()
            environment.wait_for_coordinator()
            return int(os.environ[variables.SIZE])

    # The definitions have appended the classes to JAX's list. Put them first.
    clusters = [LaunchCluster, *mpi.clusters(ClusterEnv)]
    others = [known for known in ClusterEnv._cluster_types if known not in clusters]
    ClusterEnv._cluster_types[:] = clusters + others
