"""moe_dispatch and moe_combine against NumPy: random routings, dtypes and derivatives."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_harness as harness
import oracle
import pytest
from absl.testing import absltest, parameterized

import jax_cxl

RANKS, TOKENS, WIDTH = harness.RANKS, 12, 8

KINDS = ("duplicates", "no duplicates", "all to one", "empty ranks", "no expert")

LIMITS = (
    {},
    {"capacity": 3},
    {"max_rows": 14},
    {"max_rows": 500},
)


def choices(kind, num_experts, k, tokens=TOKENS, ranks=RANKS):
    """Returns the experts that the tokens of all ranks choose, (ranks, tokens, k)."""
    rng = np.random.default_rng(len(kind) + num_experts + k)
    shape = (ranks, tokens, k)
    experts = rng.integers(0, num_experts, shape)
    if kind == "no duplicates":
        order = rng.random((ranks, tokens, num_experts)).argsort(-1)
        experts = order[..., :k]
    elif kind == "all to one":
        experts = np.full(shape, num_experts - 1)
    elif kind == "empty ranks":
        experts[1] = -1
        experts[experts < num_experts // 2] = num_experts - 1
    elif kind == "no expert":
        experts = np.where(rng.random(shape) < 0.5, experts, rng.choice([-1, num_experts], shape))
    return experts.astype(np.int32)


def power_of_two_weights(shape):
    """Returns weights whose products with small integers are exact."""
    return np.exp2(np.random.default_rng(5).integers(-3, 2, shape)).astype(np.float32)


def layer(a, *, num_experts, scale=True, **options):
    """Dispatches rows, lets each expert multiply them by its number + 1, and combines them."""
    x, experts, weights = a
    rows, handle = jax_cxl.moe_dispatch(x, experts, "i", num_experts=num_experts, **options)
    flat = rows.reshape(-1, x.shape[1])
    y = flat
    if scale:
        chosen = experts_of_rows(handle, experts, num_experts)
        y = flat * (chosen + 1).astype(x.dtype)[:, None]
    return rows, handle, jax_cxl.moe_combine(y.reshape(rows.shape), weights, handle)


def experts_of_rows(handle, experts, num_experts):
    everyone = jax_cxl.all_gather(experts, "i", tiled=True).ravel()
    return jnp.where(handle.assignment < 0, 0, everyone[handle.assignment])


class HandleTest(absltest.TestCase):
    def test_two_experts_of_a_rank_get_a_token_that_is_fetched_once(self):
        def rows(choices, per_rank):
            def body(x):
                experts = jnp.zeros((len(x), choices), np.int32)
                _, handle = jax_cxl.moe_dispatch(
                    x, experts, "i", num_experts=per_rank * harness.RANKS
                )
                return handle.fetch, handle.assignment

            shape = jax.ShapeDtypeStruct((harness.RANKS * TOKENS, 2), np.float32)
            mapped = jax.shard_map(
                body, mesh=harness.mesh(), in_specs=jax.P("i"), out_specs=jax.P("i")
            )
            fetch, assignment = jax.eval_shape(mapped, shape)
            return len(assignment) // len(fetch)

        self.assertEqual([rows(2, 1), rows(2, 2), rows(3, 4), rows(1, 2)], [1, 2, 3, 1])


class ExchangeTest(parameterized.TestCase):
    # Each line has (num_experts, k) and a limit. lab/fuzz/fuzz_moe.py tries other pairs.
    @parameterized.parameters(
        ((4, 1), LIMITS[0]),
        ((4, 1), LIMITS[1]),
        ((4, 3), LIMITS[2]),
        ((4, 3), LIMITS[3]),
        ((8, 1), LIMITS[0]),
        ((8, 1), LIMITS[2]),
        ((8, 2), LIMITS[1]),
        ((8, 2), LIMITS[3]),
        ((16, 6), LIMITS[0]),
        ((16, 6), LIMITS[1]),
        ((16, 6), LIMITS[2]),
    )
    @pytest.mark.sample(3)
    def test_random_routings(self, experts_and_k, limit):
        num_experts, k = experts_and_k
        routings = [choices(kind, num_experts, k) for kind in KINDS]
        weights = power_of_two_weights(routings[0].shape)
        x = harness.values(TOKENS, WIDTH)
        results = harness.run_each(
            lambda a: layer(a, num_experts=num_experts, **limit),
            [(x, experts, weights) for experts in routings],
        )
        for kind, experts, result in zip(KINDS, routings, results, strict=True):
            with self.subTest(kind):
                self.check(x, experts, weights, num_experts, limit, result)

    def check(self, x, experts, weights, num_experts, limit, result):
        rows, handle, z = result
        routed = oracle.route(experts, num_experts, **limit)
        expected = oracle.dispatch(x, routed)
        harness.check_equal(rows.reshape(expected.shape), expected)
        harness.check_equal(handle.group_sizes, routed.sizes)
        harness.check_equal(handle.dropped, routed.dropped)
        valid = (experts >= 0) & (experts < num_experts)
        counts = np.stack([(experts == expert).sum((1, 2)) for expert in range(num_experts)], 1)
        harness.check_equal(handle.counts, counts.astype(np.int32))
        scaled = weights * (np.where(valid, experts, 0) + 1)
        harness.check_equal(z, oracle.combine(expected, scaled.astype(np.float32), routed))

    @parameterized.product(
        dtype=(np.float32, ml_dtypes.bfloat16, np.float16, np.int32, np.uint8),
        k=(1, 2),
    )
    @pytest.mark.sample(3)
    def test_dtypes_and_rounding(self, dtype, k):
        """Adds values whose sums depend on order and rounding: each rank's sum is rounded once."""
        experts = choices("no duplicates", 8, k)
        floating = jnp.issubdtype(dtype, np.floating)
        x = harness.uneven_values(TOKENS, WIDTH) if floating else harness.values(TOKENS, WIDTH)
        x = x.astype(dtype)
        ones = np.ones(experts.shape, np.float32)
        routed = oracle.route(experts, 8)

        def body(a):
            rows, handle = jax_cxl.moe_dispatch(*a[:2], "i", num_experts=8)
            return rows, jax_cxl.moe_combine(rows, a[2], handle) if floating else ()

        rows, z = harness.run(body, (x, experts, ones))
        harness.check_equal(rows, oracle.dispatch(x, routed))
        if floating:
            harness.check_equal(z, oracle.combine(rows, ones, routed))

    @parameterized.product(limit=LIMITS[:3], experts_and_k=((4, 2), (8, 3)))
    @pytest.mark.sample(3)
    def test_handle_again(self, limit, experts_and_k):
        """With the same handle, other values of the tokens go to the same rows.

        Without weights, combine adds the rows as they are.
        """
        num_experts, k = experts_and_k
        experts = choices("duplicates", num_experts, k)
        x, others = harness.values(TOKENS, WIDTH), harness.values(TOKENS, 3) + 1
        routed = oracle.route(experts, num_experts, **limit)

        def body(a):
            x, others, experts = a
            _, handle = jax_cxl.moe_dispatch(x, experts, "i", num_experts=num_experts, **limit)
            rows, same = jax_cxl.moe_dispatch(others, handle)

            def loss(others):
                return jnp.sum(jax_cxl.moe_dispatch(others, handle)[0] ** 2)

            return rows, same, jax_cxl.moe_combine(rows, None, same), jax.grad(loss)(others)

        rows, handle, z, gradient = harness.run(body, (x, others, experts))
        expected = oracle.dispatch(others, routed)
        harness.check_equal(rows.reshape(expected.shape), expected)
        harness.check_equal(handle.group_sizes, routed.sizes)
        ones = np.ones(experts.shape, np.float32)
        harness.check_equal(z, oracle.combine(expected, ones, routed))
        harness.check_equal(gradient, 2 * z)

    @parameterized.parameters((np.float32, 4), (ml_dtypes.bfloat16, 8))
    def test_float8(self, dtype, block):
        experts = choices("no duplicates", 8, 2)
        x = harness.uneven_values(TOKENS, WIDTH).astype(dtype)
        x[0, 0] = 0
        routed = oracle.route(experts, 8)

        def body(a):
            def rows_of(x):
                return jax_cxl.moe_dispatch(x, a[1], "i", num_experts=8, float8_block=block)[0]

            rows, back = jax.vjp(rows_of, a[0])
            return rows, back(jnp.ones_like(rows))[0]

        rows, gradient = harness.run(body, (x, experts))
        harness.check_equal(rows, oracle.dispatch(oracle.float8(x, block), routed))
        harness.check_equal(gradient, np.full(x.shape, 2, dtype))

    # For any two of the three parameters, each pair of their values occurs.
    @parameterized.parameters(
        (LIMITS[i], experts_and_k, (i + k) % 2 == 0)
        for i in range(3)
        for k, experts_and_k in enumerate(((4, 2), (8, 1), (8, 3)))
    )
    @pytest.mark.sample(3)
    def test_gradients(self, limit, experts_and_k, check_vma):
        """Compares gradients with those of a dense reference: every expert sees every token."""
        num_experts, k = experts_and_k
        experts = choices("duplicates", num_experts, k)
        x, weights = harness.values(TOKENS, WIDTH), power_of_two_weights(experts.shape)
        matrices = harness.values(num_experts // RANKS, WIDTH, 3)
        target = harness.values(TOKENS, 3)
        routed = oracle.route(experts, num_experts, **limit)

        def value(x, weights, matrices, experts, target):
            rows, handle = jax_cxl.moe_dispatch(x, experts, "i", num_experts=num_experts, **limit)
            number = experts_of_rows(handle, experts, num_experts) % (num_experts // RANKS)
            y = jnp.einsum("md,mdf->mf", rows.reshape(-1, WIDTH), matrices[number])
            return jnp.sum(jax_cxl.moe_combine(y, weights, handle) * target)

        def gradients(a):
            grad = jax.grad(value, argnums=(0, 1, 2))
            return grad(*a), jax.checkpoint(grad)(*a)

        plain, again = harness.run(
            gradients, (x, weights, matrices, experts, target), check_vma=check_vma
        )

        everything = matrices.reshape(num_experts, WIDTH, 3)
        kept = routed.row >= 0

        def dense(x, weights, everything):
            per_choice = jnp.einsum("rtd,rtkdf->rtkf", x, everything[jnp.where(kept, experts, 0)])
            z = jnp.sum(jnp.where(kept, weights, 0)[..., None] * per_choice, 2)
            return jnp.sum(z * target)

        expected = jax.grad(dense, argnums=(0, 1, 2))(x, weights, everything)
        for found in (plain, again):
            for actual, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(actual, np.reshape(wanted, actual.shape))

    def test_one_rank_and_no_axis_and_no_tokens(self):
        experts = choices("duplicates", 6, 2, ranks=1)
        x, weights = harness.values(TOKENS, WIDTH, ranks=1), power_of_two_weights(experts.shape)
        routed = oracle.route(experts, 6, max_rows=20)
        expected = oracle.dispatch(x, routed)
        for axis, on in (("i", harness.mesh((1,))), ((), harness.mesh((1,)))):

            def body(a, axis=axis):
                rows, handle = jax_cxl.moe_dispatch(*a[:2], axis, num_experts=6, max_rows=20)
                return rows, jax_cxl.moe_combine(rows, a[2], handle)

            rows, z = harness.run(body, (x, experts, weights), on=on)
            harness.check_equal(rows, expected)
            harness.check_equal(z, oracle.combine(expected, weights, routed))

        none = (np.zeros((RANKS, 0, WIDTH), np.float32), np.zeros((RANKS, 0, 2), np.int32))
        for limit, size in (({"max_rows": 5}, 5), ({}, 0), ({"float8_block": 4}, 0)):
            rows, _, z = harness.run(
                lambda a, o=limit: layer((*a, a[0][:, :2]), num_experts=8, scale=False, **o), none
            )
            harness.check_equal(rows, np.zeros((RANKS, size, WIDTH), np.float32))
            self.assertEqual(z.shape, (RANKS, 0, WIDTH))

    def test_transformations(self):
        """Runs several micro-batches by start and done, under vmap, and in a loop."""
        experts = np.stack([choices(kind, 8, 2) for kind in ("duplicates", "no expert")], 1)
        x, weights = harness.values(2, TOKENS, WIDTH), power_of_two_weights(experts.shape)

        def both(x, experts, weights):
            return layer((x, experts, weights), num_experts=8, capacity=4)[2]

        def in_halves(x, experts, weights):
            futures = [
                jax_cxl.start(
                    *(jax_cxl.moe_dispatch, x[i], experts[i], "i"), num_experts=8, capacity=4
                )
                for i in range(2)
            ]
            results = []
            for i, future in enumerate(futures):
                rows, handle = future.done()
                number = experts_of_rows(handle, experts[i], 8).reshape(rows.shape[:2]) + 1.0
                y = rows * number[..., None]
                results.append(jax_cxl.start(jax_cxl.moe_combine, y, weights[i], handle))
            return jnp.stack([future.done() for future in results])

        def body(a):
            loop = jax.lax.scan(lambda carry, b: (carry, both(*b)), 0, a)[1]
            return loop, jax.vmap(both)(*a), in_halves(*a)

        results = harness.run(body, (x, experts, weights))
        for i in range(2):
            routed = oracle.route(experts[:, i], 8, capacity=4)
            rows = oracle.dispatch(x[:, i], routed)
            scaled = weights[:, i] * (np.clip(experts[:, i], 0, 7) + 1)
            expected = oracle.combine(rows, scaled.astype(np.float32), routed)
            for result in results:
                harness.check_equal(result[:, i], expected)

    @parameterized.parameters(
        (ValueError, "must be .tokens, features.", {"x": np.ones(4, np.float32)}),
        (ValueError, "must be .tokens, features.", {"experts": np.ones((5, 2), np.int32)}),
        (TypeError, "must be integers", {"experts": np.ones((4, 2), np.float32)}),
        (ValueError, "multiple of the 4 ranks", {"num_experts": 6}),
        (ValueError, "not both", {"capacity": 1, "max_rows": 1}),
        (ValueError, "capacity=0 must be at least 1", {"capacity": 0}),
        (ValueError, "must divide the 8", {"float8_block": 3}),
        (TypeError, "needs floating", {"float8_block": 4, "x": np.ones((4, 8), np.int32)}),
        (TypeError, "weights must be floating", {"weights": np.ones((4, 2), np.int32)}),
        (ValueError, "weights must have the shape", {"weights": np.ones((4, 3), np.float32)}),
        (ValueError, "rows of moe_dispatch", {"y": np.ones((9, 8), np.float32)}),
    )
    def test_wrong_arguments(self, error, message, change):
        options = {
            "x": np.ones((4, 8), np.float32),
            "experts": np.ones((4, 2), np.int32),
            "weights": np.ones((4, 2), np.float32),
            "num_experts": 8,
            "y": None,
            **change,
        }

        def body(_):
            x, experts, weights, y = (options.pop(n) for n in ("x", "experts", "weights", "y"))
            rows, handle = jax_cxl.moe_dispatch(x, experts, "i", **options)
            return jax_cxl.moe_combine(rows if y is None else y, weights, handle)

        with self.assertRaisesRegex(error, message):
            harness.run(body, harness.values(1))


if __name__ == "__main__":
    absltest.main()
