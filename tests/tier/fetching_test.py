"""Groups of arrays that are fetched ahead of their use."""

from unittest import mock

from absl.testing import absltest

from jax_cxl._tier import copying, fetching


class AheadTest(absltest.TestCase):
    def test_two_groups_ahead(self):
        begun = []
        find = lambda _, spec: begun.append(spec)  # noqa: E731
        self.enter_context(mock.patch.object(copying, "find", find))
        fetch = lambda _, specs, writers: specs  # noqa: E731
        self.enter_context(mock.patch.object(fetching, "fetch", fetch))
        ahead = fetching.ahead(None, [[n] for n in range(5)])
        found = [(group, len(begun)) for group in ahead]
        # When the caller gets a group, two more have begun: devices have room for three.
        self.assertEqual(found, [([0], 3), ([1], 4), ([2], 5), ([3], 5), ([4], 5)])


if __name__ == "__main__":
    absltest.main()
