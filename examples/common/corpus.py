"""Text as bytes: Python's standard library, or any file or folder.

Everything here is a pure function of the files, the seed and the step. So all processes get the
same batches without communication, and a resumed run gets the same batches as a run without a
break.
"""

import dataclasses
import hashlib
import pathlib
import sysconfig

import numpy as np

_HELD_OUT_TENTH = 0
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text in two parts.

    Attributes:
      name: name of the source, for people.
      train: (bytes,), uint8.
      held_out: (bytes,), uint8, from other files than `train`.
    """

    name: str
    train: np.ndarray
    held_out: np.ndarray

    def fingerprint(self) -> str:
        """Returns 16 hexadecimal digits that change with any byte of either part."""
        digest = hashlib.sha256(self.train.tobytes())
        digest.update(self.held_out.tobytes())
        return digest.hexdigest()[:16]

    def train_batch(self, seed: int, step: int, rows: int, length: int) -> np.ndarray:
        """Returns the batch of `step`.

        The batch is `rows` random windows of the training part, (rows, length), uint8.
        """
        generator = np.random.default_rng((seed, step))
        return _windows(self.train, generator.integers(len(self.train) - length, size=rows), length)

    def held_out_batch(self, rows: int, length: int) -> np.ndarray:
        """Returns windows evenly spread over the held-out part, (rows, length), uint8."""
        starts = np.linspace(0, len(self.held_out) - length, rows).astype(np.int64)
        return _windows(self.held_out, starts, length)

    def bigram_nats_per_byte(self) -> float:
        """Returns the held-out loss of a table of byte pairs. A trained model has to be better."""
        pairs = self.train[:-1].astype(np.uint16) << 8 | self.train[1:]
        counts = 1 + np.bincount(pairs, minlength=1 << 16).reshape(256, 256)
        log_likelihood = np.log(counts / counts.sum(1, keepdims=True))
        return float(-log_likelihood[self.held_out[:-1], self.held_out[1:]].mean())


def load(path: str, window: int) -> Corpus:
    """Reads a text and splits it.

    A folder is split by file: one in ten is held out, chosen by a hash of its path inside the
    folder. A file is split at nine tenths of its length.

    Args:
      path: a file, a folder (all files below it that are UTF-8 text), or "" for the *.py files
        of this interpreter's standard library.
      window: the largest number of bytes that will be read at once from either part.

    Raises:
      FileNotFoundError: there is nothing at `path`.
      ValueError: a part is shorter than `window`.
    """
    if not path:
        root = pathlib.Path(sysconfig.get_paths()["stdlib"])
        train, held_out = _split_by_file(root, "*.py")
        name = "Python standard library"
    elif (root := pathlib.Path(path)).is_file():
        text = root.read_bytes()
        cut = len(text) * 9 // 10
        train, held_out = text[:cut], text[cut:]
        name = root.name
    elif root.is_dir():
        train, held_out = _split_by_file(root, "*")
        name = root.name
    else:
        raise FileNotFoundError(f"no file or folder: {path}")
    for part, content in (("training", train), ("held-out", held_out)):
        if len(content) <= window:
            raise ValueError(
                f"the {part} part of {path or root} has {len(content)} bytes, too few for windows"
                f" of {window}: give a larger --corpus or a smaller --sequence_length."
            )
    return Corpus(name, np.frombuffer(train, np.uint8), np.frombuffer(held_out, np.uint8))


def _split_by_file(root: pathlib.Path, pattern: str) -> tuple[bytes, bytes]:
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in sorted(root.rglob(pattern)):
        relative = path.relative_to(root)
        if _SKIPPED.intersection(relative.parts) or not path.is_file():
            continue
        text = path.read_bytes()
        try:
            text.decode()
        except UnicodeDecodeError:
            continue
        tenth = hashlib.sha256(relative.as_posix().encode()).digest()[0] % 10
        parts[tenth == _HELD_OUT_TENTH].append(text)
    return b"\n".join(parts[0]), b"\n".join(parts[1])


def _windows(text: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    return text[starts[:, None] + np.arange(length)]
