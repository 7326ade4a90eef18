"""Pool URIs: what each means, and the error for each wrong one."""

import dataclasses

from absl.testing import absltest, parameterized

from jax_cxl import _core, errors
from jax_cxl._job.pool import pool_uri

_MIB = 1 << 20
_GIB = 1 << 30


class PoolUriTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("none", None),
        ("empty", ""),
        ("scheme_only", "shm:"),
        ("size_zero", "shm:?size=0"),
    )
    def test_default_is_a_nameless_pool_in_shared_memory(self, uri):
        spec = pool_uri.parse(uri)
        self.assertEqual(spec, pool_uri.PoolSpec(kind="shm", paths=(), bytes=0))
        self.assertEqual(spec.sized(4).bytes, pool_uri.automatic_bytes(4))
        self.assertEqual(spec.coherence, "coherent")
        self.assertEqual(spec.devices_per_path, 1)
        self.assertEqual(spec.offset, 0)

    @parameterized.named_parameters(
        ("shm_name", "shm:my-job_1.x", {"kind": "shm", "paths": ("my-job_1.x",)}),
        (
            "shm_all",
            "shm:a?size=1GiB&devices=6&coherence=flush&offset=8192",
            {
                "paths": ("a",),
                "bytes": _GIB,
                "devices_per_path": 6,
                "coherence": "flush",
                "offset": 8192,
            },
        ),
        (
            "file",
            "file:/mnt/a b,/mnt/c=d?size=64MiB&devices=2&offset=4KiB",
            {
                "kind": "file",
                "paths": ("/mnt/a b", "/mnt/c=d"),
                "bytes": 64 * _MIB,
                "devices_per_path": 2,
                "offset": 4096,
                "coherence": "coherent",
            },
        ),
        ("file_automatic", "file:/mnt/a", {"paths": ("/mnt/a",), "bytes": 0}),
        (
            "dax",
            "dax:/dev/dax0.0,/dev/dax1.0?offset=2MiB",
            {
                "kind": "dax",
                "paths": ("/dev/dax0.0", "/dev/dax1.0"),
                "bytes": 0,
                "offset": 2 * _MIB,
                "coherence": "flush",
            },
        ),
        (
            "dax_gpu_writes",
            "dax:/dev/dax0.0?gpu_writes=memory",
            {"coherence": "flush", "gpu_writes_memory": True},
        ),
        (
            "dax_coherent",
            "dax:/dev/dax0.0?coherence=coherent",
            {"coherence": "coherent"},
        ),
        (
            "dax_uncached",
            "dax:/dev/dax0.0?coherence=uncached",
            {"coherence": "uncached"},
        ),
    )
    def test_parses(self, uri, expected):
        spec = dataclasses.asdict(pool_uri.parse(uri))
        self.assertEqual(spec, spec | expected)

    @parameterized.parameters(
        ("4096", 4096),
        ("3KiB", 3 << 10),
        ("3MiB", 3 << 20),
        ("3GiB", 3 << 30),
        ("3TiB", 3 << 40),
    )
    def test_sizes(self, text, expected):
        spec = pool_uri.parse(f"file:/a?size={text}&offset={text}")
        self.assertEqual((spec.bytes, spec.offset), (expected, expected))

    @parameterized.product(world_size=(1, 2, 64), devices=(1, 6))
    def test_automatic_size_has_31_mib_per_rank_and_the_control_pages(self, world_size, devices):
        spec = pool_uri.parse(f"shm:?devices={devices}").sized(world_size)
        for_ranks = world_size * 31 * _MIB
        self.assertGreater(spec.bytes, for_ranks + devices * world_size * 512 * 1024)
        self.assertLess(spec.bytes, for_ranks + devices * (world_size * 640 * 1024 + 65536))
        self.assertEqual(spec.bytes % (65536 * devices), 0)

    @parameterized.parameters(
        ("my_job", "'my_job'"),
        ("tcp:host", "'tcp'"),
        ("SHM:a", "'SHM'"),
        ("shm:a/b", "'a/b'"),
        ("file:/a\0b", "zero byte"),
        ("shm:a,b", "'a,b'"),
        ("shm:" + "x" * 65, "x" * 65),
        ("shm:a?", "''"),
        ("shm:a?size", "'size'"),
        ("shm:a?size=", "'size'"),
        ("shm:a?sice=1GiB", "'sice'"),
        ("shm:a?size=1GiB&", "''"),
        ("shm:a?size=1GiB&size=2GiB", "twice"),
        ("shm:a?size=1.5GiB", "'1.5GiB'"),
        ("shm:a?size=-1", "'-1'"),
        ("shm:a?size=1gib", "'1gib'"),
        ("shm:a?size=1GB", "write 1GiB"),
        ("shm:a?offset=16mb", "write 16MiB"),
        ("shm:a?size=2T", "write 2TiB"),
        ("shm:a?size=GiB", "'GiB'"),
        ("shm:a?size=9999999TiB", "'9999999TiB'"),
        ("shm:a?size=" + "9" * 5000, "9" * 5000),
        ("shm:a?offset=x", "offset='x'"),
        ("shm:a?devices=0", "devices='0'"),
        ("shm:a?devices=65", "devices='65'"),
        ("shm:a?devices=two", "devices='two'"),
        ("shm:a?coherence=Flush", "'Flush'"),
        ("shm:a?seed=1", "'seed'"),
        ("shm:a?coherence=flush&gpu_writes=cache", "'cache'"),
        ("shm:a?gpu_writes=memory", "coherence=coherent"),
        ("dax:/dev/dax0.0?coherence=uncached&gpu_writes=memory", "coherence=uncached"),
        ("incoherent:", "'incoherent'"),
        ("file:", "''"),
        ("file:pool", "'pool'"),
        ("file:/a,", "''"),
        ("file:/a,/a", "twice"),
        ("dax:dax0.0", "'dax0.0'"),
        ("dax:/dev/dax0.0?devices=2", "'devices'"),
    )
    def test_errors_quote_the_uri_the_part_and_an_example(self, uri, part):
        with self.assertRaises(ValueError) as caught:
            pool_uri.parse(uri)
        message = str(caught.exception)
        self.assertIn(repr(uri), message)
        self.assertIn(part, message.replace(repr(uri), "", 1))
        self.assertIn("write for example", message)
        example = message.rpartition("write for example ")[2].split(" or ")[0]
        pool_uri.parse(example)

    @parameterized.parameters("shm:a?size=1MiB", "file:/a", "dax:/dev/dax0.0")
    def test_only_a_pool_in_shared_memory_without_a_size_gets_one(self, uri):
        spec = pool_uri.parse(uri)
        self.assertEqual(spec.sized(4), spec)

    def test_different_uris_of_one_pool_are_equal(self):
        spec = pool_uri.parse("shm:a?size=1GiB&devices=2")
        other = pool_uri.parse("shm:a?devices=2&size=1024MiB")
        self.assertEqual(spec, other)
        self.assertEqual(other.uri, "shm:a?devices=2&size=1024MiB")
        self.assertEqual(pool_uri.parse(None), pool_uri.parse("shm:"))
        self.assertNotEqual(spec, pool_uri.parse("shm:a?size=1GiB&devices=3"))

    def test_spec_cannot_be_changed(self):
        spec = pool_uri.parse(None)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            spec.bytes = 1

    @parameterized.parameters(
        ({"kind": "disk"}, "a pool cannot be in 'disk', only in shm, file or dax"),
        ({"paths": ()}, "the pool has no name and no path"),
        ({"paths": ("a/b",)}, "a pool in /dev/shm has one name of 1 to 64 letters"),
    )
    def test_core_refuses_places_that_no_uri_names(self, wrong, message):
        place = pool_uri.parse("shm:a?size=8MiB").for_core() | {"world_size": 1} | wrong
        with self.assertRaisesRegex(errors.CxlError, message):
            _core.Pool.create(place)


if __name__ == "__main__":
    absltest.main()
