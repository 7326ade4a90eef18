"""Writes the lines of many ranks to one terminal or file: each line whole, with a prefix."""

import contextlib
import os
import re

_MAX_LINE = 8 << 20  # A rank that never ends its line must not exhaust the memory.
_HIGH_WATER = 1 << 20
# poll() promises that this many bytes can be written to a pipe without blocking.
_WRITE = 4096
# A carriage return at the end of the text is no line end yet, because a newline may follow.
_LINE_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# All escape sequences except colors. They move the cursor or erase text, even text of other ranks.
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-ln-~]")
_ERASE = b"\r\x1b[K"
_COLORS = (36, 33, 32, 35, 34, 31)


class Sink:
    """An output stream of the launcher. It keeps bytes until the stream's reader takes them.

    It uses carriage returns and escape sequences if it is a terminal.
    """

    def __init__(self, fd: int, terminal: bool):
        self.fd = fd
        self.terminal = terminal
        self.broken = False
        self._pending = bytearray()
        self._live = b""

    @property
    def pending(self) -> bool:
        """Whether bytes wait to be written."""
        return bool(self._pending)

    @property
    def full(self) -> bool:
        """Whether too many bytes wait, so that the caller should stop reading from the ranks."""
        return len(self._pending) > _HIGH_WATER

    def room(self, prefix: bytes) -> int:
        """Returns how many columns of the terminal an unfinished line has after its prefix."""
        columns = 0
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size(self.fd).columns
        columns = columns or 80  # Some terminals do not know their width.
        return max(columns - len(_ESCAPE.sub("", prefix.decode())) - 1, 1)

    def line(self, text: bytes) -> None:
        """Adds a line; `text` includes the line end."""
        if self._live:
            text = _ERASE + text + self._live
        self._pending += text

    def live(self, text: bytes) -> None:
        """Shows `text` as the unfinished last line of a terminal, in place of the previous one."""
        if text != self._live:
            self._pending += _ERASE + text
            self._live = text

    def write(self) -> None:
        """Writes some bytes; call it when poll() says that the descriptor is writable."""
        try:
            written = os.write(self.fd, bytes(self._pending[:_WRITE]))
        except OSError:
            # The reader or the terminal is gone.
            self.broken = True
            self._pending.clear()
        else:
            del self._pending[:written]


class Source:
    """One output stream of one rank: the read end `fd` of its pipe, which this object closes.

    A line ends with a newline. Progress bars rewrite their line with carriage returns. A terminal
    shows the line of rank 0 as it changes, and the last state of the lines of other ranks. In a
    file each state becomes a line.
    """

    def __init__(self, fd: int, sink: Sink, prefix: bytes, live: bool):
        self.fd = fd
        self.sink = sink
        self.closed = False
        self._prefix = prefix
        self._live = live and sink.terminal
        self._shows = False  # whether the terminal shows the unfinished line
        self._text = bytearray()

    def read(self) -> None:
        """Reads the available bytes; call it when poll() says that the descriptor is readable."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            self.close()
            return
        # The text of earlier reads contains no line end, except perhaps a carriage return as its
        # last byte. So search for line ends only in that case, or if the new bytes contain one.
        search = b"\n" in data or b"\r" in data or self._text.endswith(b"\r")
        self._text += data
        lines = self._take_lines() if search else []
        if len(self._text) > _MAX_LINE:
            lines.append(bytes(self._text) + b"\n")
            self._text.clear()
        if lines:
            self._show(b"")
        for line in lines:
            self.sink.line(self._prefix + self._shown(line))
        if self._live:
            self._show(self._unfinished())

    def close(self) -> None:
        """Passes on an unfinished last line and closes the pipe."""
        if self.closed:
            return
        self.closed = True
        os.close(self.fd)
        self._show(b"")
        last = self._shown(bytes(self._text.rstrip(b"\r")))
        if last:
            self.sink.line(self._prefix + last + b"\n")

    def _show(self, text: bytes) -> None:
        if text or self._shows:
            self.sink.live(text)
        self._shows = bool(text)

    def _take_lines(self) -> list[bytes]:
        """Removes the finished lines from the text, and returns the lines to print.

        A terminal does not get the lines that end with a carriage return, because a later state of
        the same line follows.
        """
        lines = []
        text = bytes(self._text)
        end = 0
        for match in _LINE_END.finditer(text):
            line, end = text[end : match.end()], match.end()
            if not line.endswith(b"\r"):
                lines.append(line)
            elif not self.sink.terminal and line.strip():
                lines.append(line[:-1] + b"\n")
        del self._text[:end]
        return lines

    def _shown(self, line: bytes) -> bytes:
        """Returns a line without the characters that would disturb other lines of a terminal."""
        return _CONTROL.sub(b"", line) if self.sink.terminal else line

    def _unfinished(self) -> bytes:
        """Returns the unfinished line, cut to one line of the terminal."""
        text = _ESCAPE.sub("", self._text.rstrip(b"\r").decode(errors="replace"))
        if not text:
            return b""
        return self._prefix + text[: self.sink.room(self._prefix)].encode()


def sinks() -> tuple[Sink, Sink]:
    """Returns the sinks of stdout and stderr: one sink twice if both are the same terminal."""
    # A terminal that cannot erase a line is treated like a file.
    capable = os.environ.get("TERM", "dumb") != "dumb"
    first, second = (Sink(fd, capable and os.isatty(fd)) for fd in (1, 2))
    one_terminal = first.terminal and second.terminal and os.fstat(1).st_rdev == os.fstat(2).st_rdev
    # If one terminal had two sinks, neither would know where the other has left the cursor.
    return first, first if one_terminal else second


def prefix(rank: int, sink: Sink) -> bytes:
    """Returns the prefix of a rank's lines."""
    text = f"[{rank}] "
    if sink.terminal and not os.environ.get("NO_COLOR"):
        text = f"\x1b[{_COLORS[rank % len(_COLORS)]}m[{rank}]\x1b[0m "
    return text.encode()
