"""The numbers of begun saves, of which each mirror has a copy."""

from collections.abc import Iterable

from jax_cxl._store.memory import checksum, layout
from jax_cxl._store.memory.section import Section


def damaged(section: Section) -> list[tuple[int, int, int]]:
    """Finds damaged numbers of begun saves.

    Returns a device, an offset, and the right word for each. Without another copy, this word is 0,
    which is right if no program uses the memory.
    """
    found = []
    for slot in range(layout.NUM_CLAIMS):
        for offset in (section.geometry.begun(slot), section.geometry.begun(slot) + 8):
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


def _in(words: Iterable[int]) -> list[int]:
    return [number for word in words if (number := checksum.number_of(word)) is not None]
