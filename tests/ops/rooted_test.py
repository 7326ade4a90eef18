"""jax_cxl.broadcast, reduce, gather and scatter against NumPy."""

import jax.numpy as jnp
import numpy as np
import ops_harness as harness
import pytest
from absl.testing import absltest, parameterized

from jax_cxl.ops import public as ops


def broadcast(root):
    return lambda x: np.stack([x[root]] * len(x))


def only_at(root, function):
    def oracle(x):
        result = function(x)
        y = np.zeros((len(x), *result.shape), result.dtype)
        y[root] = result
        return y

    return oracle


def scatter(root, axis, tiled):
    def deal(x):
        if tiled:
            return np.stack(np.split(x[root], len(x), axis))
        return np.moveaxis(x[root], axis, 0)

    return deal


class RootedTest(parameterized.TestCase):
    @parameterized.product(root=(0, 2), check_vma=(False, True))
    def test_broadcast(self, root, check_vma):
        for operation in (
            lambda v: ops.broadcast(v, "i", root=root),
            lambda v: ops.pbroadcast(v, "i", root),
        ):
            harness.check_linear(operation, broadcast(root), 2, 3, check_vma=check_vma)

    @parameterized.product(root=(0, 2), check_vma=(False, True))
    def test_reduce(self, root, check_vma):
        operation, oracle = (
            lambda v: ops.reduce(v, "i", root=root),
            only_at(root, harness.fold),
        )
        harness.check_linear(operation, oracle, 2, 3, check_vma=check_vma)
        x = harness.uneven_values(100)
        harness.check_equal(harness.run(operation, x, check_vma=check_vma), oracle(x))

    @parameterized.product(root=(0, 3), axis=(0, 1), tiled=(False, True), check_vma=(False, True))
    @pytest.mark.sample(5)
    def test_gather(self, root, axis, tiled, check_vma):
        join = np.concatenate if tiled else np.stack
        harness.check_linear(
            lambda v: ops.gather(v, "i", root=root, axis=axis, tiled=tiled),
            only_at(root, lambda x: join(x, axis)),
            2,
            3,
            check_vma=check_vma,
        )

    @parameterized.product(root=(0, 3), axis=(0, 1), tiled=(False, True), check_vma=(False, True))
    @pytest.mark.sample(5)
    def test_scatter(self, root, axis, tiled, check_vma):
        harness.check_linear(
            lambda v: ops.scatter(v, "i", root=root, axis=axis, tiled=tiled),
            scatter(root, axis, tiled),
            4,
            4,
            check_vma=check_vma,
        )

    def test_wrong_roots(self):
        x = harness.values(4)
        for operation in (ops.broadcast, ops.reduce, ops.gather, ops.scatter):
            with self.assertRaisesRegex(ValueError, "root=4 is out of bounds"):
                harness.run(lambda v, f=operation: f(v, "i", root=4), x)
            with self.assertRaisesRegex(NotImplementedError, "Python int"):
                harness.run(lambda v, f=operation: f(v, "i", root=v[0].astype(jnp.int32)), x)


if __name__ == "__main__":
    absltest.main()
