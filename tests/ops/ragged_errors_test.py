"""jax_cxl.ragged_all_to_all refuses wrong slices."""

import jax
import jax.numpy as jnp
import numpy as np
import ops_harness as harness
from absl.testing import absltest, parameterized
from ragged_slices import BATCH, INTO, ROWS, batched, exchange, tables

import jax_cxl


def gradient(arguments):
    """Returns the gradient of the exchange with respect to `output`.

    It needs only the places where rows arrive, because the exchange overwrites them.
    """
    operand, output, table = arguments
    return jax.grad(lambda v: exchange((operand, v, table)).sum())(output)


def scanned(arguments):
    return jax.lax.scan(lambda c, t: (exchange((arguments[0], c, t)), ()), *arguments[1:])[0]


class WrongSlicesTest(parameterized.TestCase):
    """Each wrong slice ends the job: all ranks raise the same error."""

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
            # The slice fits into the operand of the whole batch, but not into that of one element.
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


if __name__ == "__main__":
    absltest.main()
