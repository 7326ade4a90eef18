"""Text of other processes and of damaged files does not control a terminal."""

from absl.testing import absltest, parameterized

import jax_cxl
from jax_cxl import _text


class TextTest(parameterized.TestCase):
    @parameterized.parameters(
        "\x1b", "\r", "\x07", "\x7f", "\x9b", "\u00ad", "\u200b", "\u202e", "\u2066", "\ufeff"
    )
    def test_what_is_replaced(self, character):
        text = f"['w{character}']"
        self.assertEqual(_text.printable(text), "['w?']")
        self.assertEqual(str(jax_cxl.StoreError(text)), "['w?']")

    @parameterized.parameters("", "rank 3: psum\n", "Gr\u00fc\u00dfe \u6771\u4eac \U0001f600")
    def test_what_stays(self, text):
        self.assertEqual(_text.printable(text), text)

    @parameterized.parameters("no address.", "no address", "no address.\n")
    def test_a_sentence_goes_on_after_an_error(self, text):
        self.assertEqual(_text.clause(ValueError(text)), "no address")


if __name__ == "__main__":
    absltest.main()
