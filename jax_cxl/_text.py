"""Makes text from files and pools, which may be damaged, safe to print on a terminal."""


def printable(text: str) -> str:
    r"""Returns the text with "?" in place of control characters and invisible characters.

    `PrintableText` of cc/base/text.h does this for the native library. Newlines stay.

    Example:
      >>> printable("ab\\x1b[2J\\u202e")
      'ab?[2J?'
    """
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
