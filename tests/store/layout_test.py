"""Where the parts of a section lie, and what the directory of a version may hold."""

import itertools
import json
import pathlib
import re
import struct
import zlib

from absl.testing import absltest, parameterized

from jax_cxl._store.memory import layout
from jax_cxl._store.trees import leaves

_ROOT = pathlib.Path(__file__).parents[2]


class LayoutTest(parameterized.TestCase):
    @parameterized.parameters((2, 1, 0, 0), (2, 3, 1, 1), (5, 4, 0, 7))
    def test_parts_of_a_section(self, keep, devices, parity, rows):
        start = layout.SECTIONS_OFFSET + 3 * layout.BLOCK_BYTES
        size = layout.Geometry(keep, parity, devices, 0, 0).bytes_for(rows)
        made = layout.Geometry(keep, parity, devices, start, start + size)
        self.assertEqual((made.rows, made.blocks_per_row), (rows, devices - parity))
        self.assertEqual(made.mirrors, range(devices if parity else 1))
        writers = range(layout.MAX_PROCESSES)
        parts = [(made.claims, layout.NUM_CLAIMS * layout.CLAIM_BYTES)]
        parts += [(made.begun(i), layout.BEGUN_BYTES) for i in range(layout.NUM_CLAIMS)]
        parts += [(made.note(i), layout.NOTE_BYTES) for i in writers]
        for number in range(keep + 1):
            parts += [(made.record(number, i), layout.RECORD_BYTES) for i in writers]
            parts += [(made.row(number, i), layout.BLOCK_BYTES) for i in range(rows)]
        self.assertEqual(parts, sorted(parts))
        for (begin, length), (following, _) in itertools.pairwise(parts):
            self.assertLessEqual(begin + length, following)
        self.assertEqual(parts[0][0], start)
        self.assertEqual(sum(parts[-1]), made.end)
        self.assertEqual(made.area(keep + 1), made.area(0))

    def test_superblocks_are_as_in_cpp(self):
        # C++ code reads superblocks so that pools do not overwrite stores.
        path = _ROOT / "cc/pool/layout/layout.h"
        if not path.exists():
            self.skipTest("needs the sources of cc/; Bazel's tests lack them")
        header = path.read_text()
        (version,) = re.findall(r"kStoreVersion = (\d+);", header)
        (fields,) = re.findall(r"^struct \S+ SuperblockFields {\n(.*?)^};", header, re.M | re.S)
        names = re.findall(r"^  (\w+) (\w+)(?:\[8\])? =", fields, re.M)
        codes = {"char": "8s", "uint32_t": "I", "uint64_t": "Q"}
        page = layout.Superblock(1, 3, 2, 1 << 33).to_bytes()
        found = struct.unpack_from("<" + "".join(codes[kind] for kind, _ in names), page)
        self.assertEqual(
            dict(zip([name for _, name in names], found, strict=True)),
            {
                "magic": layout.MAGIC,
                "version": int(version),
                "parity": 1,
                "num_devices": 3,
                "device": 2,
                "block_bytes": layout.BLOCK_BYTES,
                "device_bytes": 1 << 33,
            },
        )

    @parameterized.parameters((0, 0, 0), (1, 1, 1), (1 << 20, 1, 1), ((1 << 20) + 1, 2, 1))
    def test_blocks(self, size, blocks, tables):
        self.assertEqual(layout.blocks(size), blocks)
        self.assertEqual(layout.table_blocks(blocks), tables)

    def test_blocks_of_tables(self):
        self.assertEqual(layout.table_blocks(1 << 17), 1)
        self.assertEqual(layout.table_blocks((1 << 17) + 1), 2)


class DirectoryTest(parameterized.TestCase):
    def directory(self, *changes):
        """Returns a directory of one array of 2 x 3 on two processes, with changes to its parts."""
        half = [[[[0, 1], [0, 3]], [0]], [[[1, 2], [0, 3]], [1]]]
        parts = [leaves._VERSION, [0, 1], False, [half]]
        parts.append([["a", "int8", [2, 3], 0, "", False, False]])
        for where, value in changes:
            inside = parts
            for key in where[:-1]:
                inside = inside[key]
            inside[where[-1]] = value
        return zlib.compress(json.dumps([parts, []]).encode())

    def test_right(self):
        (leaf,), writers, whole = leaves.decode(self.directory())
        self.assertEqual((leaf.name, leaf.shape, writers, whole), ("a", (2, 3), [0, 1], False))

    @parameterized.parameters(
        ((0,), 0),
        ((1,), 2),
        ((1,), [0]),
        ((3,), None),
        ((3,), []),
        ((3, 0, 0, 1), []),
        ((3, 0, 0, 1), [2]),
        ((3, 0, 0, 1), [3]),
        ((3, 0, 0, 1), [-1]),
        ((3, 0, 0, 0), [[0, 1]]),
        ((3, 0, 0, 0, 0), [-1, 1]),
        ((3, 0, 0, 0, 0), [1, 0]),
        ((3, 0, 1, 0, 0), [1, 3]),
        ((4,), [[]]),
        ((4,), 5),
        ((4, 0, 1), "no_dtype"),
        ((4, 0, 1), ""),
        ((4, 0, 2), None),
        ((4, 0, 3), 1),
        ((4, 0, 3), "0"),
    )
    def test_wrong(self, where, value):
        with self.assertRaises(ValueError):
            leaves.decode(self.directory((where, value)))

    @parameterized.parameters(b"", b"no zlib", zlib.compress(b"[]"), zlib.compress(b"3"))
    def test_other_bytes(self, data):
        with self.assertRaises(ValueError):
            leaves.decode(data)


if __name__ == "__main__":
    absltest.main()
