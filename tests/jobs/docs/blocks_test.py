"""What blocks.py finds in a document. A malformed block must not pass as a block that is run."""

import pathlib
import tempfile

import blocks
from absl.testing import absltest, parameterized

_PAGE = """\
# Page

```python title="sum.py"
print(1)
```

* item

    ```bash
    python sum.py
    ```

```text title="Output"
1
```

```bash title="Needs no_such_program: a reason"
no_such_program
```
"""


def _of(text):
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.md"
        page.write_text(text)
        return blocks.of(page), blocks.indented(page)


class BlocksTest(parameterized.TestCase):
    def test_finds_blocks(self):
        found, indented = _of(_PAGE)
        self.assertEmpty(indented)
        self.assertEqual([block.line for block in found], [4, 10, 14, 18])
        program, command, output, missing = found
        self.assertTrue(program.is_file)
        self.assertEqual((command.text, command.runs), ("python sum.py\n", True))
        self.assertTrue(output.is_output)
        self.assertFalse(missing.runs)
        for block in found:
            block.check_title()

    @parameterized.parameters(
        "```\nx\n```\n",
        "```rust\nx\n```\n",
        "```python\nx\n```\n",
        '```python title="Some words"\nx\n```\n',
        '```bash title="Not run by the tests: a reason"\nx\n```\n',
        "<!-- Not run by the tests: a reason -->\n```yaml\nx\n```\n",
        '<!-- Not run by the tests: a reason -->\n```bash title="x.sh"\nx\n```\n',
        '```bash title="See below"\nx\n```\n',
    )
    def test_refuses(self, text):
        (block,), _ = _of(text)
        with self.assertRaises(AssertionError):
            block.check_title()

    @parameterized.parameters(
        ("<!-- Not run by the tests: a reason -->\n", False),
        ("    <!-- Not run by the tests: a reason -->\n", False),
        ("<!-- Not run by the tests: -->\n", True),
        ("<!-- Not run by the tests: a reason -->\n\n", True),
        ("<!-- Another comment -->\n", True),
        ("", True),
    )
    def test_leaves_out_what_the_line_above_says(self, above, runs):
        first, second = _of(f"{above}```bash\nx\n```\n```bash\ny\n```\n")[0]
        self.assertEqual(first.runs, runs)
        self.assertTrue(second.runs)

    def test_finds_indented_code(self):
        self.assertEqual(_of("**Text:**\n\n    code\n\nText\n")[1], [3])
        self.assertEmpty(_of("* item\n\n    paragraph of the item\n")[1])
        self.assertEmpty(_of("```text\n\n    indented\n```\n")[1])


if __name__ == "__main__":
    absltest.main()
