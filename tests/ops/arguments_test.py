"""Arguments of the wrong type or range: errors that name the argument, before any tracing."""

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl.ops import public as ops

X = jnp.ones((4, 4))
IDS = jnp.zeros((4, 1), np.int32)
LEVELS = (ops.psum, ops.pmean, ops.pmax, ops.pmin, ops.all_gather, ops.psum_scatter, ops.broadcast)
ROOTED = (ops.broadcast, ops.reduce, ops.gather, ops.scatter)


def calls():
    """Yields (call, kind of error, text of the error)."""
    for operation in LEVELS:
        for wrong in ("yes", 1, 0, 1.0):
            yield lambda o=operation, w=wrong: o(X, "i", levels=w), TypeError, "levels="
    yield lambda: ops.pand(IDS, "i", levels="no"), TypeError, "levels='no'"
    yield lambda: ops.all_to_all(X, "i", 0, 0, levels="yes"), TypeError, "levels='yes'"
    for operation in (ops.all_gather, ops.psum_scatter, ops.gather, ops.scatter):
        yield lambda o=operation: o(X, "i", tiled="yes"), TypeError, "tiled='yes'"
    yield lambda: ops.all_to_all(X, "i", 0, 0, tiled=2), TypeError, "tiled=2"
    for operation in (ops.pscan, ops.pexscan):
        yield lambda o=operation: o(X, "i", reverse="no"), TypeError, "reverse='no'"
        yield lambda o=operation: o(X, "i", op="avg"), ValueError, "op='avg'"
    for operation in ROOTED:
        for wrong in (1.0, "1", None, True, np.float32(1)):
            yield lambda o=operation, w=wrong: o(X, "i", root=w), TypeError, "must be an integer"
        for wrong in (-1, 4, 2**32, -(2**32)):
            yield lambda o=operation, w=wrong: o(X, "i", root=w), ValueError, "out of bounds"
    yield lambda: ops.pbroadcast(X, "i", 0.5), TypeError, "source=0.5"
    yield lambda: ops.pbroadcast(X, "i", 4), ValueError, "source=4"
    for operation in (ops.all_gather, ops.gather, ops.scatter):
        for wrong in (0.5, "0", None, True):
            yield lambda o=operation, w=wrong: o(X, "i", axis=w), TypeError, "axis="
        for wrong in (5, -5, 2**32, 2**64):
            yield lambda o=operation, w=wrong: o(X, "i", axis=w), ValueError, "out of bounds"
    yield lambda: ops.psum_scatter(X, "i", scatter_dimension=0.5), TypeError, "scatter_dimension"
    yield lambda: ops.psum_scatter(X, "i", scatter_dimension=2), ValueError, "scatter_dimension=2"
    yield lambda: ops.all_to_all(X, "i", 0.5, 0), TypeError, "split_axis=0.5"
    yield lambda: ops.all_to_all(X, "i", 0, 2**33), ValueError, "concat_axis=8589934592"
    yield lambda: ops.pswapaxes(X, "i", 0.5), TypeError, "split_axis=0.5"
    for groups in ([[0.5, 1], [2, 3]], [["0", 1], [2, 3]], [[False, 1], [2, 3]], 3, [0, 1, 2, 3]):
        text = "axis_index_groups"
        yield lambda g=groups: ops.psum(X, "i", axis_index_groups=g), TypeError, text
    for groups in ([[0, 1], [2, 2**32 + 3]], [[0, 1], [2, -1]], [], [[0], [1, 2, 3]]):
        yield lambda g=groups: ops.psum(X, "i", axis_index_groups=g), ValueError, text
    for perm in ([(0.5, 1)], [("0", 1)], [(True, 1)], [3], 3):
        yield lambda p=perm: ops.ppermute(X, "i", p), TypeError, "perm"
        yield lambda p=perm: ops.psend(X, "i", p), TypeError, "perm"
    for perm in ([(0, 4)], [(2**32, 1)], [(0, 1, 2)], [(0, 1), (0, 2)], [(0, 1), (4 - 4, 1)]):
        yield lambda p=perm: ops.ppermute(X, "i", p), ValueError, "perm|unique"
    for perm in ([0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 4], [1, 0]):
        yield lambda p=perm: ops.pshuffle(X, "i", p), ValueError, "not a permutation"
    for perm in ([0.0, 1.0, 2.0, 3.0], 4):
        yield lambda p=perm: ops.pshuffle(X, "i", p), TypeError, "perm"
    for wrong in (1.5, "2", True):
        for label in ("capacity", "max_rows"):
            yield lambda k=label, w=wrong: moe(**{k: w}), TypeError, label
        yield lambda w=wrong: moe(num_experts=w), TypeError, "num_experts="
        yield lambda w=wrong: moe(float8_block=w), TypeError, "float8_block="
    for wrong in (0, -1, 1 << 31, 1 << 40):
        for label in ("capacity", "max_rows"):
            yield lambda k=label, w=wrong: moe(**{k: w}), ValueError, f"{label}={wrong} must be"
        yield lambda w=wrong: moe(num_experts=w), ValueError, f"num_experts={wrong} must be"
        yield lambda w=wrong: moe(float8_block=w), ValueError, f"float8_block={wrong} must be"
    yield lambda: moe(capacity=1 << 30), ValueError, "2147483648 rows of the experts of a rank"
    for wrong in (X, jnp.zeros((4, 1), bool), np.zeros((4, 1)), [[2**70]] * 4):
        text = "experts must be integers"
        yield lambda w=wrong: ops.moe_dispatch(X, w, "i", num_experts=4), TypeError, text
    for wrong in (X[0], jnp.zeros(4, bool), [0.0, 1.0], [2**70], "0"):
        yield lambda w=wrong: ops.take_rows(X, w, "i"), TypeError, "indices must be integers"
    column = jnp.zeros(4, np.int32)
    for at, label in enumerate(("input_offsets", "send_sizes", "output_offsets", "recv_sizes")):
        columns = [column] * 4
        columns[at] = np.zeros(4)
        yield (
            lambda c=tuple(columns): ops.ragged_all_to_all(X, X, *c, axis_name="i"),
            TypeError,
            f"{label} must be integers",
        )

    for groups in ([[0, 1], [2]], [[0, 1], [2, 2]], [[0, 1, 2, 3], [4]]):
        text = r"indices of \('i',\) are 0 to 3, got"
        yield lambda g=groups: ops.psum(X, "i", axis_index_groups=g), ValueError, text
    pairs = [(0, 1)]
    for shape, dtype in (((2, 3), X.dtype), (X.shape, np.int8), (X.shape, np.complex64)):
        received = jax.ShapeDtypeStruct(shape, dtype)
        yield (
            lambda r=received: ops.precv(ops.psend(X, "i", pairs), r, "i", pairs),
            ValueError,
            "the psend sent",
        )
    for tokens in (3, 5):
        yield (
            lambda n=tokens: ops.moe_dispatch(jnp.zeros((n, 2)), moe()[1]),
            ValueError,
            "must have the 4 tokens of the handle",
        )


def moe(**options):
    return ops.moe_dispatch(X, IDS, "i", **{"num_experts": 8, **options})


class ArgumentsTest(parameterized.TestCase):
    def test_of_operations(self):
        def body(x):
            for call, kind, text in calls():
                with self.subTest(text=text), self.assertRaisesRegex(kind, text) as caught:
                    call()
                self.assertIn("jax_cxl.", str(caught.exception))
            return x

        harness.run(body, harness.values(1))

    def test_integers_of_all_kinds_are_right(self):
        def body(x):
            one = np.uint8(1)
            y = ops.broadcast(x, "i", root=one)
            z = ops.ppermute(y, "i", list(np.array([[0, 1], [1, 0]], np.int8)))
            w = ops.psum(z, "i", axis_index_groups=np.array(harness.GROUPS))
            return ops.all_gather(w, "i", axis=np.int64(-1), tiled=np.True_)

        self.assertEqual(harness.run(body, harness.values(2)).shape, (4, 8))

    def test_outside_of_programs(self):
        for options, kind, text in (
            ({"levels": "yes"}, TypeError, "levels='yes'"),
            ({"local": 1}, TypeError, "local=1"),
            ({"strict": "no"}, TypeError, "strict='no'"),
            ({"early_bytes": 1.5}, TypeError, "early_bytes=1.5"),
            ({"early_bytes": -1}, ValueError, "early_bytes=-1"),
        ):
            with self.assertRaisesRegex(kind, text):
                jax_cxl.replace_collectives(**options)
        for slack in (-0.1, np.nan, np.inf, "0.1", True):
            with self.assertRaisesRegex(ValueError, "slack"):
                jax_cxl.expert_placement([[1, 2]], slack=slack)
        with self.assertRaisesRegex(ValueError, "finite"):
            jax_cxl.expert_placement([[1, np.inf]])


if __name__ == "__main__":
    absltest.main()
