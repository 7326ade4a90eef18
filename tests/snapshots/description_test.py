"""The description of a tree, on which processes agree.

tests/store/layout_test.py tests damaged descriptions.
"""

from absl.testing import absltest, parameterized

from jax_cxl import errors
from jax_cxl._store.trees import leaves
from jax_cxl._store.trees.leaves import Leaf, Shard
from jax_cxl._store.writing import save_agreement

HALVES = Shard(((0, 2),), (0,)), Shard(((2, 4),), (1,))
LEAVES = [
    Leaf("['w']", "float32", (4,), HALVES, weak_type=True),
    Leaf("['n']", value=7),
    Leaf("['k']", "uint32", (0, 2), (Shard(((0, 0), (0, 2)), (0, 1)),), key="fry"),
    Leaf("['own']", "int8", (), leaves.of_each_process([Shard((), (0,))], 2), local=True),
    Leaf("['s']", value="text"),
]


def encoded(values, whole=False):
    return leaves.encode(leaves.structure(LEAVES, (0, 2), whole), values)


class DirectoryTest(parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_it_is_read_as_it_was_written(self, whole):
        found, writers, was_whole = leaves.decode(encoded([7, "text"], whole))
        self.assertEqual((found, writers, was_whole), (LEAVES, [0, 2], whole))

    def test_a_value_that_is_missing(self):
        with self.assertRaisesRegex(ValueError, "is damaged"):
            leaves.decode(encoded([7]))


class MergedTest(parameterized.TestCase):
    def merged(self, *told):
        return save_agreement.merge(told, (0, 2), whole=False)

    def test_equal_trees(self):
        other = [leaf._replace(value=None) for leaf in LEAVES]
        found = self.merged(other, other)
        self.assertEqual((found.leaves, found.writers), (tuple(other), (0, 2)))
        self.assertEqual(sum(not leaf.dtype for leaf in found.leaves), 2)

    def in_process(self, owner):
        """Returns what each process says about an array on two devices of process `owner`.

        The second result is the merged description.
        """
        shards = tuple(Shard(shard.index, (owner,)) for shard in HALVES)
        seen = Leaf("['a']", "float32", (4,), shards)
        own = seen._replace(local=True, shards=leaves.of_each_process(shards, 2))
        return [[own], [seen]] if owner == 0 else [[seen], [own]], seen

    @parameterized.parameters(0, 1)
    def test_an_array_of_one_process(self, owner):
        told, seen = self.in_process(owner)
        self.assertEqual(self.merged(*told).leaves, (seen,))

    @parameterized.parameters(0, 1)
    def test_an_array_of_one_process_that_the_others_see_otherwise(self, owner):
        told, _ = self.in_process(owner)
        told[owner][0] = told[owner][0]._replace(dtype="int32")
        with self.assertRaisesRegex(errors.MismatchError, "on devices of its own"):
            self.merged(*told)

    @parameterized.parameters(
        (0, {"dtype": "int32"}, "['w'], int32[4] with a weak type"),
        (0, {"weak_type": False}, "['w'], float32[4]"),
        (0, {"local": True}, "['w'], float32[4] with a weak type on devices of its own"),
        (1, {"value": 8}, "['n'], the int 8"),
        (1, {"name": ""}, "(the whole tree), the int 7"),
        (2, {"key": "rbg"}, "['k'], keys of rbg[0, 2]"),
    )
    def test_leaves_that_differ(self, position, change, text):
        other = list(LEAVES)
        other[position] = other[position]._replace(**change)
        with self.assertRaisesRegex(
            errors.MismatchError, "^processes 0 and 2 save .* first leaf"
        ) as raised:
            self.merged(LEAVES, other)
        before = save_agreement.describe(LEAVES[position])
        self.assertEqual(raised.exception.calls, (before, text))

    def test_shards_that_differ(self):
        pieces = tuple(Shard(((i, i + 1),), (1, 0, 0)) for i in range(5))
        other = LEAVES[0]._replace(shards=pieces)
        with self.assertRaises(errors.MismatchError) as raised:
            self.merged([LEAVES[0]], [other])
        first, second = (text.partition(" in ")[2] for text in raised.exception.calls)
        self.assertEqual(first, "2 shards ([0:2] of processes [0]; [2:4] of processes [1])")
        rows = "; ".join(f"[{i}:{i + 1}] of processes [0, 1]" for i in range(4))
        self.assertEqual(second, f"5 shards ({rows}; ...)")

    def test_a_leaf_that_one_process_does_not_have(self):
        with self.assertRaises(errors.MismatchError) as raised:
            self.merged(LEAVES[:-1], LEAVES)
        self.assertEqual(raised.exception.calls, ("no leaf", "['s'], the str 'text'"))


if __name__ == "__main__":
    absltest.main()
