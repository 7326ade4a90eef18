"""The numbers of begun saves, of which each mirror has a copy.

The owner of a claim has three words: the number of the save that it has begun, the number that it
has told to the other processes of its job, and the version of this save, plus 1. A later job clears
the first two. The last one stays, so that no other version gets the number of a damaged version.
"""

from collections.abc import Iterable

import numpy as np

from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.memory.section import Section


def damaged(section: Section) -> list[tuple[int, int, int]]:
    """Finds damaged numbers of begun saves.

    Returns a device, an offset, and the right word for each. Without another copy, this word is 0,
    which is right if no program uses the memory.
    """
    found = []
    for slot in range(layout.NUM_CLAIMS):
        for offset in range(section.geometry.begun(slot), section.geometry.begun(slot) + 24, 8):
            words = {d: section.devices.load_word(d, offset) for d in section.geometry.mirrors}
            right = checksum.seal_number(max(_in(words.values()), default=0))
            found += [
                (device, offset, right)
                for device, word in words.items()
                if checksum.number_of(word) is None
            ]
    return found


def numbers(section: Section, offset: int) -> list[int]:
    """Returns the number at an offset of each mirror, without damaged copies."""
    return _in(section.devices.load_word(d, offset) for d in section.geometry.mirrors)


def last_version(section: Section) -> int:
    """Returns the greatest version that a job has begun to save; -1: none."""
    begin = section.geometry.begun(0)
    pages = [
        section.devices.read(d, begin, layout.BEGUN_BYTES * layout.NUM_CLAIMS).view(np.uint64)
        for d in section.geometry.mirrors
    ]
    words = np.concatenate([page[2 :: layout.BEGUN_BYTES // 8] for page in pages])
    return max(_in(words.tolist()), default=0) - 1


def _in(words: Iterable[int]) -> list[int]:
    return [number for word in words if (number := checksum.number_of(word)) is not None]
