"""Text from files and pools, whose contents may be damaged, for a terminal."""


def printable(text: str) -> str:
    r"""Returns a text with "?" for characters that a terminal obeys or does not show.

    `PrintableText` of cc/base/text.h does this for the native library. Newlines stay.

    Example:
      >>> printable("ab\\x1b[2J\\u202e")
      'ab?[2J?'
    """
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
