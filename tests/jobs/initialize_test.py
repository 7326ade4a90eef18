"""`initialize`: pools that cannot be used, and processes that do not know of each other."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import uuid

import jax
import jax.numpy as jnp
import job
import numpy as np
import pytest
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import errors
from jax_cxl._job import configuration, lifecycle


class InitializeTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        jax_cxl.shutdown()
        self.addCleanup(jax_cxl.shutdown)
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.name = f"initialize-{uuid.uuid4().hex[:8]}"

    def psum_of_ranks(self) -> int:
        mesh = jax_cxl.make_mesh(
            (jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,)
        )
        total = jax.shard_map(
            lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P()
        )
        return int(jax.jit(total)(jnp.arange(jax.device_count()))[0])


class UsablePoolTest(InitializeTestCase):
    @parameterized.parameters(
        "shm:{name}",
        "shm:{name}?size=16MiB",
        "shm:{name}?size=48MiB&devices=6",
        "shm:{name}?size=16MiB&coherence=flush",
        "shm:{name}?size=16MiB&coherence=uncached",
        "file:{folder}/pool?size=16MiB",
        "file:{folder}/a,{folder}/b?size=16MiB&devices=2",
        # The pool begins at 5 GiB of a sparse file. Offsets in the file need more than 32 bits
        # there, while offsets in the pool count from its beginning.
        "file:{folder}/far?size=16MiB&offset=5GiB",
    )
    def test_communicates(self, uri):
        jax_cxl.initialize(uri.format(name=self.name, folder=self.folder))
        self.assertEqual(self.psum_of_ranks(), 28)
        self.assertEmpty(job.pool_files(self.name))
        self.assertEmpty(list(self.folder.iterdir()))

    def test_messages_of_any_size_need_64_mib_a_rank_at_most(self):
        jax_cxl.initialize()
        ranks = jax.device_count()
        rank_bytes = lifecycle.ensure_started().pool_bytes // ranks
        self.assertLessEqual(rank_bytes, 64 << 20)
        # This is more than a rank's part of the pool, so the data wraps around the rank's ring.
        count = rank_bytes + 1000
        mesh = jax_cxl.make_mesh((ranks,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        shift = jax.shard_map(
            lambda x: jax_cxl.ppermute(x, "i", [(r, (r + 1) % ranks) for r in range(ranks)]),
            mesh=mesh,
            in_specs=jax.P("i"),
            out_specs=jax.P("i"),
        )
        sharding = jax.NamedSharding(mesh, jax.P("i"))
        x = np.arange(ranks * count, dtype=np.uint32).view(np.uint8)[: ranks * count]
        y = np.asarray(jax.jit(shift)(jax.device_put(x, sharding)))
        self.assertTrue((y == np.roll(x, count)).all())

    def test_existing_pool_file_is_used_in_place_and_kept(self):
        # The file is full of words by which the ranks of an earlier job waited for each other. None
        # of these words may satisfy a wait of this job.
        path = self.folder / "pool"
        jax_cxl.initialize(f"file:{path}?size=16MiB")
        jax_cxl.shutdown()
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.posix_fallocate(descriptor, 0, 16 << 20)
        os.close(descriptor)
        for _ in range(3):
            jax_cxl.initialize(f"file:{path}")
            self.assertEqual(self.psum_of_ranks(), 28)
            jax_cxl.shutdown()
        self.assertEqual(path.stat().st_size, 16 << 20)

    def test_compiled_program_runs_on_the_next_pool(self):
        self.assertEqual(self.psum_of_ranks(), 28)
        jax_cxl.shutdown()
        jax_cxl.initialize(f"shm:{self.name}")
        self.assertEqual(self.psum_of_ranks(), 28)

    def test_environment_names_the_pool(self):
        config = configuration.from_environment({"JAX_CXL_POOL": "shm:x", "JAX_CXL_TIMEOUT": "2.5"})
        self.assertEqual((config.pool, config.timeout), ("shm:x", 2.5))
        with self.assertRaisesRegex(ValueError, "JAX_CXL_TIMEOUT='soon' is not a valid float"):
            configuration.from_environment({"JAX_CXL_TIMEOUT": "soon"})
        for name in ("JAX_CXL_TIMEOUT", "JAX_CXL_WARN_AFTER", "JAX_CXL_HEARTBEAT_TIMEOUT"):
            for wrong in ("nan", "0", "-1"):
                with self.assertRaisesRegex(ValueError, f"{name} must be greater than 0"):
                    configuration.from_environment({name: wrong})

    def test_again_with_the_same_pool_does_nothing_with_another_raises(self):
        jax_cxl.initialize(f"shm:{self.name}")
        jax_cxl.initialize(f"shm:{self.name}")
        with self.assertRaisesRegex(errors.NotInitializedError, "call jax_cxl.shutdown"):
            jax_cxl.initialize("shm:another")

    def test_program_without_a_runtime(self):
        mesh = jax_cxl.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        total = jax.jit(
            jax.shard_map(
                lambda x: jax_cxl.psum(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P()
            )
        )
        total(np.arange(8))
        jax_cxl.shutdown()
        with self.assertRaisesRegex(errors.NotInitializedError, "call jax_cxl.initialize"):
            jax.block_until_ready(total(np.arange(8)))


class UnusablePoolTest(InitializeTestCase):
    def check(self, uri: str, error: type[Exception], *words: str) -> None:
        with self.assertRaises(error) as raised:
            jax_cxl.initialize(uri)
        for word in words:
            self.assertIn(word, str(raised.exception))

    def test_larger_than_dev_shm(self):
        free = shutil.disk_usage("/dev/shm").free
        needed = (free // 4096 + 1000) * 4096
        self.check(f"shm:{self.name}?size={needed}", errors.PoolTooSmallError, str(needed), "free")
        self.assertEmpty(job.pool_files(self.name))

    def test_too_small_for_the_ranks(self):
        self.check(f"shm:{self.name}?size=64KiB", errors.PoolTooSmallError, "size=")

    def test_missing_folder(self):
        self.check(
            f"file:{self.folder}/no/pool?size=16MiB", errors.PoolNotFoundError, f"{self.folder}/no"
        )

    def test_missing_device(self):
        self.check("dax:/dev/dax99.0", errors.PoolNotFoundError, "/dev/dax99.0")

    def test_not_a_dax_device(self):
        self.check("dax:/dev/null", errors.InvalidPoolError, "/dev/null")

    def test_permission_denied(self):
        self.folder.chmod(0)
        if os.geteuid() == 0:  # Root may do anything, so try it as another user.
            self.addCleanup(os.seteuid, 0)
            os.seteuid(65534)
        self.check(
            f"file:{self.folder}/pool?size=16MiB", errors.PoolPermissionError, str(self.folder)
        )

    def test_foreign_file(self):
        path = self.folder / "notes.txt"
        path.write_text("not a pool" * 10_000)
        path.chmod(0o600)
        self.check(f"file:{path}", errors.PoolError, str(path))
        self.assertTrue(path.read_text().startswith("not a pool"))

    def test_misaligned(self):
        self.check(
            f"file:{self.folder}/pool?size=16MiB&offset=100", errors.InvalidPoolError, "offset"
        )

    def test_malformed_uri(self):
        self.check("shm:x?color=blue", ValueError, "color")

    def test_two_jobs_on_one_name(self):
        uri = f"shm:{self.name}"
        with subprocess.Popen(
            [sys.executable, job.PROGRAMS / "wait_in_pool.py", uri],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            self.assertEqual(other.stdout.readline(), "initialized\n")
            self.check(uri, errors.PoolInUseError, self.name, str(other.pid))
            other.stdin.close()
        jax_cxl.initialize(uri)
        self.assertEqual(self.psum_of_ranks(), 28)


class SeveralProcessesTest(InitializeTestCase):
    def test_all_processes_fail_alike(self):
        done = job.run(
            "failures/ending.py",
            f"--pool=file:{self.folder}/no/pool",
            processes=3,
            devices_per_process=2,
        )
        self.assertNotEqual(done.returncode, 0)
        # The first process that fails ends the others, some of them before they have printed their
        # own errors. So the output need not have all errors.
        self.assertIn("PoolNotFoundError", done.stderr)
        self.assertIn(f"{self.folder}/no", done.stderr)

    def test_again_and_again(self):
        for launcher in ((), ("--go-on",)):
            done = job.run("initialize_repeatedly.py", launcher=launcher, timeout=100)
            self.assertEqual(done.returncode, 0, done.stderr)
            sums = [2 * x for x in range(12)]
            for process in range(2):
                self.assertEqual(done.stdout.count(f"[{process}] no pool"), 2, done.stdout)
                self.assertEqual(done.stdout.count(f"[{process}] sums {sums}"), 3, done.stdout)
            self.assertEqual(done.stdout.count("[0] not running"), 3, done.stdout)

    @pytest.mark.long
    def test_limits_of_the_process_are_named(self):
        program = "import jax_cxl; jax_cxl.initialize('shm:?size=64MiB')"
        limited = [("-f", 1024, ()), ("-n", 20, ("-m", "jax_cxl.launch", "-n", "2"))]
        for option, limit, launcher in limited:
            with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
                script.write(program)
                script.flush()
                command = [sys.executable, *launcher, script.name]
                done = subprocess.run(
                    ["bash", "-c", f'ulimit {option} {limit}; exec "$@"', "bash", *command],
                    capture_output=True,
                    text=True,
                    check=False,
                )
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"ulimit {option}", done.stderr)

    def test_launched_but_initialized_too_late(self):
        done = job.run("distributed_too_late.py")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("before anything uses a device", done.stderr)

    def test_several_processes_that_do_not_know_of_each_other(self):
        done = subprocess.run(
            [sys.executable, "-c", "import jax_cxl; jax_cxl.initialize()"],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PMI_SIZE": "2"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("PMI_SIZE=2", done.stderr)
        self.assertIn("should be defined. Call", done.stderr)
        self.assertIn("jax.distributed.initialize(", done.stderr)


if __name__ == "__main__":
    absltest.main()
