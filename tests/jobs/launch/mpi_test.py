"""Programs under MPI launchers that JAX itself does not detect.

Some tests run the real `mpirun` of Open MPI 5 and `mpiexec` of MPICH 5, if
tests/helpers/mpi_libraries.py finds them.
"""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from unittest import mock

import job
import mpi_libraries
import pytest
from absl.testing import absltest, parameterized
from jax._src.clusters.cluster import ClusterEnv

from jax_cxl._job.launched import detect

_OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-node-7-6273@1",
    "PMIX_RANK": "3",
}
_HYDRA = {
    "PMI_SIZE": "4",
    "PMI_RANK": "3",
    "MPI_LOCALRANKID": "3",
    "MPI_LOCALNRANKS": "4",
}
# Slurm's variables inside an allocation. Those of the MPI launcher that started the process win.
_SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_NODELIST": "node[7-8]",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
}


class VariablesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        detect.install()

    def found(self, variables):
        with mock.patch.dict(os.environ, variables):
            return next(c for c in ClusterEnv._cluster_types if c.is_env_present())

    @parameterized.parameters((_OPEN_MPI, "open_mpi", 1), (_HYDRA, "hydra", 3))
    def test_who_a_process_is(self, variables, name, local):
        with mock.patch.dict(os.environ, variables | _SLURM):
            cluster = self.found({})
            self.assertEqual(cluster.name, name)
            self.assertEqual((cluster.get_process_id(), cluster.get_process_count()), (3, 4))
            self.assertEqual(cluster.get_local_process_id(), local)

    def test_open_mpi_on_several_hosts(self):
        cluster = self.found(_OPEN_MPI)
        with mock.patch.dict(os.environ, _OPEN_MPI):
            host, port = cluster.get_coordinator_address(None, None).split(":")
            self.assertEqual(cluster.get_coordinator_address(None, "77"), "node-7:77")
        self.assertEqual(host, "node-7")
        self.assertBetween(int(port), 61440, 65535)

    def test_hydra_on_several_hosts_says_what_to_set(self):
        variables = _HYDRA | {"MPI_LOCALNRANKS": "2"}
        cluster = self.found(variables)
        with (
            mock.patch.dict(os.environ, variables),
            self.assertRaisesRegex(RuntimeError, "set JAX_COORDINATOR_ADDRESS=HOST:PORT"),
        ):
            cluster.get_coordinator_address(None, None)

    def test_hydras_processes_agree_on_a_port_through_scripts(self):
        cluster = self.found(_HYDRA)
        ours, theirs = socket.socketpair()
        with (
            contextlib.closing(ours),
            contextlib.closing(theirs),
            mock.patch.dict(os.environ, _HYDRA | {"PMI_FD": str(theirs.fileno())}),
        ):
            address = cluster.get_coordinator_address(None, None)
        # The port comes from the process id of Hydra's proxy. If there is a PMI_FD, the proxy is
        # the process that made this socket; otherwise it is the parent. The test process is the
        # proxy in both calls.
        with (
            mock.patch.object(os, "getppid", return_value=os.getpid()),
            mock.patch.dict(os.environ, _HYDRA),
        ):
            self.assertEqual(cluster.get_coordinator_address(None, None), address)

    def test_open_mpi_4_is_left_to_jax(self):
        cluster = self.found(_OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.96.0.1:34911"})
        self.assertNotIn(cluster.name, ("open_mpi", "hydra"))


class UnchangedTest(absltest.TestCase):
    def test_a_program_that_does_not_import_jax_cxl(self):
        # JAX itself knows these variables of Open MPI 4, and derives a port from the job's number
        # in them. The number is the test's process id, so that tests use different ports.
        program = pathlib.Path(__file__).parent / "programs/jitted_sum.py"
        variables = {
            "OMPI_MCA_orte_hnp_uri": f"{os.getpid() << 16}.0;tcp://127.0.0.1:34911",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "JAX_CXL_REPLACE_COLLECTIVES": "1",
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, program],
                env=os.environ
                | variables
                | {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in "01"
        ]
        for rank in ranks:
            with rank:
                self.addCleanup(rank.kill)
                output, errors = rank.communicate(timeout=100)
            self.assertEqual(rank.returncode, 0, errors)
            self.assertRegex(output, "variable '1', through the pool [1-9][0-9]* bytes")


@absltest.skipIf(mpi_libraries.MISSING, mpi_libraries.MISSING)
class LaunchersTest(parameterized.TestCase):
    """Tests with the real launchers."""

    @parameterized.parameters(
        ("openmpi", ("mpirun", "--oversubscribe", "--bind-to", "none")),
        ("mpich", ("mpiexec",)),
    )
    @pytest.mark.sample(2)
    def test_a_program_runs_unchanged(self, library, command):
        # There is a script between the launcher and the program.
        program = ("sh", "-c", '"$0" "$1"; exit $?', sys.executable, job.PROGRAMS / "under_mpi.py")
        variables = mpi_libraries.environment(library)
        ended = subprocess.run(
            [shutil.which(command[0], path=variables["PATH"]), *command[1:], "-n", "2", *program],
            env=os.environ | variables | {"JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertCountEqual(ended.stdout.split(), ["0:2:1.0", "1:2:1.0"])


if __name__ == "__main__":
    absltest.main()
