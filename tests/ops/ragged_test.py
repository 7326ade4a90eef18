"""jax_cxl.ragged_all_to_all against NumPy."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import ops

ROWS, INTO = 40, 50


def oracle(operand, output, table):
    """The exchange of all ranks; table has the shape (ranks, 4, ranks * slices)."""
    n = len(operand)
    slices = table.shape[2] // n
    result = output.copy()
    for sender in range(n):
        for k in range(n * slices):
            first, size, to, _ = table[sender, :, k]
            result[k // slices, to : to + size] = operand[sender, first : first + size]
    return result


def tables(rng, ranks=harness.RANKS, slices=2, rows=ROWS, into=INTO, dtype=np.int32):
    """Slices of random sizes, some empty, in random places."""
    entries = ranks * slices
    size = rng.integers(0, rows // entries + 1, (ranks, entries))
    size[rng.random(size.shape) < 0.2] = 0

    def place(sizes, space):
        order = rng.permutation(len(sizes))
        gaps = rng.multinomial(space - sizes.sum(), [1 / (len(sizes) + 1)] * (len(sizes) + 1))
        offsets = np.empty_like(sizes)
        at = 0
        for gap, k in zip(gaps, order, strict=False):
            offsets[k] = at + gap
            at += gap + sizes[k]
        return offsets

    first = np.stack([place(s, rows) for s in size])
    by_receiver = size.reshape(ranks, ranks, slices).swapaxes(0, 1).reshape(ranks, entries)
    to = np.stack([place(s, into) for s in by_receiver])
    to = to.reshape(ranks, ranks, slices).swapaxes(0, 1).reshape(ranks, entries)
    return np.stack([first, size, to, by_receiver], axis=1).astype(dtype)


def routed(rng, kind, slices, rows):
    """Slices of tokens that a router has sent, with room for all of them at each rank."""
    ranks, entries = harness.RANKS, harness.RANKS * slices
    size = rng.multinomial(rows, [1 / entries] * entries, ranks)
    if kind == "all to one":
        size[:] = 0
        size[:, slices : 2 * slices] = rng.multinomial(rows, [1 / slices] * slices, ranks)
    elif kind == "empty ranks":
        size[::2] = 0
    elif kind == "nothing":
        size[:] = 0
    elif kind == "one row":
        size[:] = 0
        size[2, 0] = 1
    order = rng.permutation(entries)  # of the slices in the operand
    first = np.empty_like(size)
    first[:, order] = np.cumsum(size[:, order], 1) - size[:, order]
    by_receiver = size.reshape(ranks, ranks, slices).swapaxes(0, 1).reshape(ranks, entries)
    to = np.cumsum(by_receiver, 1) - by_receiver
    to = to.reshape(ranks, ranks, slices).swapaxes(0, 1).reshape(ranks, entries)
    return np.stack([first, size, to, by_receiver], axis=1).astype(np.int32)


def exchange(arguments, **options):
    operand, output, table = arguments
    return ops.ragged_all_to_all(operand, output, *table, axis_name="i", **options)


class RaggedAllToAllTest(parameterized.TestCase):
    @parameterized.product(
        dtype=(bool, np.int8, ml_dtypes.bfloat16, np.float32, np.complex64, ml_dtypes.int4),
        slices=(1, 3),
        check_vma=(False, True),
    )
    def test_values(self, dtype, slices, check_vma):
        rng = np.random.default_rng(slices)
        operand = harness.values(ROWS, 3, dtype=np.int8).astype(dtype)
        output = harness.values(INTO, 3, dtype=np.int8).astype(dtype)
        for _ in range(3):
            table = tables(rng, slices=slices)
            y = harness.run(exchange, (operand, output, table), check_vma=check_vma)
            harness.check_equal(y, oracle(operand, output, table))

    def test_many_chunks(self):
        rng = np.random.default_rng(0)
        rows = 20_000
        operand = rng.standard_normal((harness.RANKS, rows, 130)).astype(np.float32)
        output = np.zeros((harness.RANKS, rows + 5, 130), np.float32)
        table = tables(rng, rows=rows, into=rows + 5)
        y = harness.run(exchange, (operand, output, table))
        harness.check_equal(y, oracle(operand, output, table))

    @parameterized.product(
        kind=("random", "all to one", "empty ranks", "nothing", "one row"),
        # Some fit into a submission, some take many rounds.
        size=((5, 8), (200, 40), (3000, 700)),
    )
    def test_routed_tokens(self, kind, size):
        rows, width = size
        rng = np.random.default_rng(rows)
        operand = rng.integers(0, 256, (harness.RANKS, rows, width), np.uint8)
        output = rng.integers(0, 256, (harness.RANKS, harness.RANKS * rows, width), np.uint8)
        run = harness.program(exchange, check_vma=True)
        for slices in (1, 4):
            for _ in range(3 if rows < 3000 else 1):
                table = routed(rng, kind, slices, rows)
                y = np.asarray(run((operand, output, table)))
                harness.check_equal(y, oracle(operand, output, table))

    def test_long_tables(self):
        rng = np.random.default_rng(7)
        operand, output = harness.values(6000, 3), harness.values(6000, 3)
        table = tables(rng, slices=1000, rows=6000, into=6000)
        y = harness.run(exchange, (operand, output, table))
        harness.check_equal(y, oracle(operand, output, table))

    def test_a_row_goes_to_several_ranks(self):
        operand, output = harness.values(ROWS, 3), harness.values(INTO, 3)
        n = harness.RANKS
        table = np.zeros((n, 4, n), np.int32)
        table[:, 0], table[:, 1], table[:, 3] = 7, 5, 5
        table[:, 2] = 5 * np.arange(n)[:, None]
        y = harness.run(exchange, (operand, output, table))
        harness.check_equal(y, oracle(operand, output, table))

    def test_only_what_is_sent_goes_through_the_pool(self):
        operand = np.ones((harness.RANKS, ROWS, 1000), np.float32)
        table = np.zeros((harness.RANKS, 4, harness.RANKS), np.int32)
        table[0, 1, 2] = table[2, 3, 0] = 5  # Rank 0 sends five rows to rank 2.
        run = harness.program(exchange, check_vma=True)
        jax.block_until_ready(run((operand, operand, table)))
        before = jax_cxl.stats()
        jax.block_until_ready(run((operand, operand, table)))
        published = jax_cxl.stats().bytes_published - before.bytes_published
        self.assertEqual(published, 5 * 4000 + table.size * 8)

    def test_lax_example(self):
        table = np.array([[[0, 1], [1, 2], [0, 0], [1, 1]], [[0, 1], [1, 1], [1, 2], [2, 1]]])
        y = harness.run(
            exchange,
            (np.array([[1, 2, 2], [3, 4, 0]]), np.zeros((2, 4), int), table),
            on=harness.mesh((2,)),
        )
        np.testing.assert_array_equal(y, [[1, 3, 0, 0], [2, 2, 4, 0]])

    def test_groups(self):
        rng = np.random.default_rng(1)
        operand, output = harness.values(ROWS), harness.values(INTO)
        table = np.stack([tables(rng, ranks=2) for _ in range(2)])
        spread = np.empty((4, *table.shape[2:]), np.int32)
        expected = output.copy()
        for part, group in zip(table, harness.GROUPS, strict=True):
            spread[group] = part
            expected[group] = oracle(operand[group], output[group], part)
        y = harness.run(
            lambda a: exchange(a, axis_index_groups=harness.GROUPS), (operand, output, spread)
        )
        harness.check_equal(y, expected)

    @parameterized.parameters(False, True)
    def test_derivatives(self, check_vma):
        table = tables(np.random.default_rng(2))
        operand, output = harness.values(ROWS, 2), harness.values(INTO, 2)
        y = oracle(operand, output, table)

        def tangent(a):
            operand, output, table = a
            return jax.jvp(
                lambda u, v: exchange((u, v, table)), (operand, output), (2 * operand, 3 * output)
            )[1]

        arguments = (operand, output, table)
        harness.check_equal(
            harness.run(tangent, arguments, check_vma=check_vma),
            oracle(2 * operand, 3 * output, table),
        )

        def gradient(a):
            operand, output, table = a
            return jax.grad(lambda u, v: jnp.sum(exchange((u, v, table)) ** 2) / 2, argnums=(0, 1))(
                operand, output
            )

        def constant(a):
            return jax.jvp(lambda u: u * exchange(jax.lax.stop_gradient(a)).sum(), (2.0,), (1.0,))

        total = y.sum(1).sum(1)
        value, slope = harness.run(constant, arguments, check_vma=check_vma)
        np.testing.assert_array_equal(value, 2 * total)
        np.testing.assert_array_equal(slope, total)

        # The rows of the result, sent back to where they came from.
        reach = oracle(np.ones_like(operand), np.zeros_like(output), table)
        expected = np.zeros_like(operand)
        for sender in range(len(operand)):
            for first, size, _, _ in table[sender].T:
                expected[sender, first : first + size] = operand[sender, first : first + size]
        for transformed in (gradient, jax.checkpoint(gradient)):
            to_operand, to_output = harness.run(transformed, arguments, check_vma=check_vma)
            harness.check_equal(to_operand, expected)
            harness.check_equal(to_output, np.where(reach > 0, 0, y).astype(np.float32))

    @parameterized.parameters(False, True)
    def test_batching(self, check_vma):
        rng = np.random.default_rng(3)
        operand, output = harness.values(3, ROWS), harness.values(INTO, 3)
        table = np.stack([tables(rng) for _ in range(3)], axis=1)
        expected = np.stack(
            [oracle(operand[:, b], output[..., b], table[:, b]) for b in range(3)], axis=1
        )

        def batched(a):
            return jax.vmap(lambda *b: exchange(b), in_axes=(0, 1, 0))(*a)

        y = harness.run(batched, (operand, output, table), check_vma=check_vma)
        harness.check_equal(y, expected)

        # Only some are batched.
        y = harness.run(
            lambda a: jax.vmap(lambda t: exchange((a[0], a[1], t)))(a[2]),
            (operand[:, 0], output[..., 0], table),
            check_vma=check_vma,
        )
        expected = [oracle(operand[:, 0], output[..., 0], table[:, b]) for b in range(3)]
        harness.check_equal(y, np.stack(expected, axis=1))

    def test_own_axis_of_vmap_and_one_rank(self):
        operand, output = harness.values(ROWS, 2), harness.values(INTO, 2)
        table = tables(np.random.default_rng(4))
        y = jax.vmap(lambda *a: exchange(a), axis_name="i")(operand, output, table)
        harness.check_equal(np.asarray(y), oracle(operand, output, table))
        arguments = (operand[:1], output[:1], tables(np.random.default_rng(5), ranks=1))
        y = harness.run(exchange, arguments, on=harness.mesh((1,)))
        harness.check_equal(y, oracle(*arguments))

    @parameterized.parameters(
        (
            ValueError,
            "the same dimensions after the first",
            (4, 2),
            (5, 3),
            (4,),
            np.float32,
            np.int32,
        ),
        (ValueError, "one length", (4, 2), (5, 2), (1, 4), np.float32, np.int32),
        (ValueError, "divisible by the size 4", (4, 2), (5, 2), (6,), np.float32, np.int32),
        (TypeError, "Convert one", (4, 2), (5, 2), (4,), np.int8, np.int32),
        (TypeError, "must be integers", (4, 2), (5, 2), (4,), np.float32, np.float32),
    )
    def test_wrong_arguments(self, error, message, rows, into, sizes, dtype, kind):
        def body(v):
            columns = [jnp.zeros(sizes, kind)] * 4
            operand = jnp.zeros(rows, np.float32) + v[0]
            return ops.ragged_all_to_all(operand, jnp.zeros(into, dtype), *columns, axis_name="i")

        with self.assertRaisesRegex(error, message):
            harness.run(body, harness.values(1))


BATCH = 3


def batched(arguments):
    return jax.vmap(lambda *a: exchange(a))(*arguments)


def gradient(arguments):
    """The gradient with respect to the output, which only needs the places of the rows."""
    operand, output, table = arguments
    return jax.grad(lambda v: exchange((operand, v, table)).sum())(output)


def scanned(arguments):
    return jax.lax.scan(lambda c, t: (exchange((arguments[0], c, t)), ()), *arguments[1:])[0]


class WrongSlicesTest(parameterized.TestCase):
    """Each of them ends the job: all ranks raise the same error."""

    def tearDown(self):
        super().tearDown()
        jax_cxl.shutdown()

    def check(self, change, message, function=exchange, operand=None, output=None, stack=None):
        operand = harness.values(ROWS) if operand is None else operand
        output = harness.values(INTO) if output is None else output
        table = tables(np.random.default_rng(6))
        if stack is not None:
            table = np.stack([table] * stack, 1)
        change(table)
        with self.assertRaisesRegex(jax_cxl.InvalidCollectiveError, message):
            harness.run(function, (operand, output, table))

    def test_offset_out_of_range(self):
        def change(table):
            table[1, 0, 3], table[1, 1, 3] = ROWS - 1, 2
            table[1, 3, 2 * 1 + 1] = 2

        self.check(change, r"rank 1: input_offsets\[3\] = 39 and send_sizes\[3\] = 2 are not ")

    def test_negative_offset(self):
        def change(table):
            table[2, 2, 5] = -1

        self.check(change, r"rank 2: output_offsets\[5\] = -1 ")

    def test_sizes_disagree(self):
        def change(table):
            table[0, 3, 7] += 1

        self.check(change, r"rank 3 sends .* and rank 0 expects")

    def test_slices_overlap(self):
        def change(table):
            table[:, 0] = table[:, 1] = table[:, 3] = 0
            table[1, 1, 0] = table[0, 3, 2] = 4
            table[3, 1, 1] = table[0, 3, 7] = 2
            table[1, 2, 0], table[3, 2, 1] = 10, 13

        self.check(change, r"output of rank 0, rows \[10, 14\) from rank 1 and .* from rank 3")

    @parameterized.parameters(
        (0, 5, -1, r"input_offsets\[5\] = -1 "),
        (0, 5, ROWS + 1, r"input_offsets\[5\] = 41 .* not within the 40 rows of its operand"),
        (2, 5, -2, r"output_offsets\[5\] = -2 "),
        (2, 5, INTO + 1, r"output_offsets\[5\] = 51 .* not within the 50 rows of the output"),
        (1, 5, -1, r"send_sizes\[5\] = -1 "),
    )
    def test_an_element_of_a_batch_stays_within_its_rows(self, column, entry, value, message):
        operand, output = harness.values(BATCH, ROWS), harness.values(BATCH, INTO)

        def change(table):
            table[2, 1, column, entry] = value

        message = "element 1 of the batch: rank 2: .*" + message
        self.check(change, message, batched, operand, output, stack=BATCH)

    @parameterized.parameters(*range(2))
    def test_elements_of_nested_batches_stay_within_their_rows(self, entry):
        operand, output = harness.values(2, BATCH, ROWS), harness.values(2, BATCH, INTO)

        def change(table):
            # Room in the operand of the whole batch, but not in that of the element.
            table[3, 1, 0, entry], table[3, 1, 1, entry] = 0, ROWS + 1

        def nested(a):
            tables = jnp.stack([a[2][:1].repeat(BATCH, 0), a[2]])
            return jax.vmap(lambda *b: batched(b))(a[0], a[1], tables)

        message = rf"element 4 of the batch: rank 3: .*send_sizes\[{entry}\] = 41 "
        self.check(change, message, nested, operand, output, stack=BATCH)

    @parameterized.parameters(gradient, scanned)
    def test_transformed(self, function):
        def change(table):
            table[1, ..., 0, 2] = ROWS + 3

        self.check(
            change, r"rank 1: input_offsets\[2\] = 43 ", function,
            stack=2 if function is scanned else None,
        )  # fmt: skip

    @parameterized.parameters(
        ((0,), (INTO,)), ((0,), (0,)), ((ROWS, 0), (INTO, 0)), ((ROWS,), (0,))
    )
    def test_without_bytes(self, rows, into):
        operand = np.zeros((harness.RANKS, *rows), np.float32)
        output = np.ones((harness.RANKS, *into), np.float32)
        table = np.zeros((harness.RANKS, 4, harness.RANKS), np.int32)
        harness.check_equal(harness.run(exchange, (operand, output, table)), output)
        if not output.size:
            return  # XLA leaves out what computes an empty array.
        table[3, 1, 2] = table[2, 3, 3] = 1
        message = r"rank 3: .* send_sizes\[2\] = 1 are not within the 0 rows of its operand"
        with self.assertRaisesRegex(jax_cxl.InvalidCollectiveError, message):
            harness.run(exchange, (operand, output, table))


class WithoutPoolTest(parameterized.TestCase):
    """Under vmap over the axis of the exchange, and in a group of one rank."""

    @parameterized.parameters(
        (0, -1, r"rank \d: input_offsets\[1\] = -1 "),
        (0, ROWS, r"rank \d: input_offsets\[1\] = 40 and send_sizes\[1\] = 3"),
        (2, -4, r"rank \d: output_offsets\[1\] = -4 "),
        (2, INTO, r"rank \d: output_offsets\[1\] = 50 "),
        (3, 1, r"rank \d sends 3 rows .* expects 1 "),
        (1, ROWS + 1, r"rank \d: .*send_sizes\[1\] = 41 "),
    )
    def test_wrong_slices(self, column, value, message):
        for ranks in (1, harness.RANKS):
            table = np.zeros((ranks, 4, 2 * ranks), np.int32)
            table[-1, 1, 1] = table[0, 3, 2 * ranks - 1] = 3
            entry = 2 * ranks - 1 if column == 3 else 1
            table[0 if column == 3 else -1, column, entry] = value
            operand = harness.values(ROWS, ranks=ranks)
            output = harness.values(INTO, ranks=ranks)
            runs = [lambda *a: jax.vmap(lambda *b: exchange(b), axis_name="i")(*a)]
            if ranks == 1:
                runs.append(lambda *a: harness.run(exchange, a, on=harness.mesh((1,))))
                runs.append(
                    lambda *a: harness.run(batched, [v[:, None] for v in a], on=harness.mesh((1,)))
                )
            for run in runs:
                with self.assertRaisesRegex(jax_cxl.InvalidCollectiveError, message):
                    jax.block_until_ready(run(operand, output, table))
        jax_cxl.shutdown()

    def test_batch_over_own_axis(self):
        rng = np.random.default_rng(3)
        operand, output = harness.values(BATCH, ROWS, 2), harness.values(BATCH, INTO, 2)
        table = np.stack([tables(rng) for _ in range(BATCH)], axis=1)
        y = jax.vmap(lambda *a: batched(a), axis_name="i")(operand, output, table)
        expected = [oracle(operand[:, b], output[:, b], table[:, b]) for b in range(BATCH)]
        harness.check_equal(np.asarray(y), np.stack(expected, axis=1))
        y = jax.vmap(jax.vmap(lambda *a: exchange(a), axis_name="i"), in_axes=1, out_axes=1)(
            operand, output, table
        )
        harness.check_equal(np.asarray(y), np.stack(expected, axis=1))

    def test_nested_batches(self):
        rng = np.random.default_rng(4)
        operand, output = harness.values(2, BATCH, ROWS, 2), harness.values(2, BATCH, INTO, 2)
        table = np.stack([tables(rng) for _ in range(2 * BATCH)], axis=1)
        table = table.reshape(harness.RANKS, 2, BATCH, *table.shape[2:])
        y = harness.run(lambda a: jax.vmap(lambda *b: batched(b))(*a), (operand, output, table))
        expected = output.copy()
        for at in np.ndindex(2, BATCH):
            expected[:, *at] = oracle(operand[:, *at], output[:, *at], table[:, *at])
        harness.check_equal(y, expected)

    @parameterized.parameters(False, True)
    def test_axes_and_groups_beside_an_axis_of_vmap(self, rows):
        def take(x):
            return jax_cxl.take_rows(x, jnp.zeros(1, int), ("i", "j"))

        def move(x, groups=None, axes="j"):
            column = jnp.zeros(8, int)
            return jax_cxl.ragged_all_to_all(
                x, x, *[column] * 4, axis_name=axes, axis_index_groups=groups
            )

        bodies = [
            take if rows else lambda x: move(x, axes=("i", "j")),
            lambda x: (
                jax_cxl.take_rows(x, jnp.zeros(1, int), "j", axis_index_groups=[[0, 1]])
                if rows
                else move(x, [[0, 1]])
            ),
        ]
        for body in bodies:
            with self.assertRaisesRegex(NotImplementedError, "without axis_index_groups and other"):
                harness.run(jax.vmap(body, axis_name="j"), harness.values(2, 8))


if __name__ == "__main__":
    absltest.main()
