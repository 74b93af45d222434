"""Which tags the messages of an entry have, as a number (docs/adr/0102).

Each group has a dictionary of the sets of tags that its entries have; an entry's row in the index
has the number of its set, so that one without a wanted tag is passed over without being read. The
set of an entry may name a tag that no message of it has, but never lacks one that a message has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

#: The number of an entry whose tags are not known: a reader of tags looks inside.
LOOK_INSIDE = 0
#: So many sets have a number in a group, and their tags so many bytes together.
SETS_MAX = 4_096
_BYTES_MAX = 256 * 1024
#: What a tag takes beside its characters.
_TAG_BYTES = 64
#: For so many questions it is kept which sets they pass over.
_KEPT_MAX = 16


class TagSets:
    """The sets of a group by number, from 1 on. No number is ever given to another set."""

    __slots__ = ("_bytes", "_numbers", "_passed", "sets")

    def __init__(self) -> None:
        """Begin with none."""
        self.sets: list[frozenset[str]] = []
        self._numbers: dict[frozenset[str], int] = {}
        self._bytes = 0
        #: By wanted tags: how many sets were looked at, and which of them have none of these.
        self._passed: dict[frozenset[str], tuple[int, set[int]]] = {}

    def number(self, tags: Collection[str]) -> int:
        """Return the number of a set; `LOOK_INSIDE` for none at all, and once there are too many.

        "" stands for messages without a tag.
        """
        if not tags:
            return LOOK_INSIDE
        one = frozenset(tags)
        number = self._numbers.get(one)
        if number is None:
            size = sum(_TAG_BYTES + len(tag) for tag in one)
            if len(self.sets) >= SETS_MAX or self._bytes + size > _BYTES_MAX:
                return LOOK_INSIDE
            self._bytes += size
            self.sets.append(one)
            number = self._numbers[one] = len(self.sets)
        return number

    def numbers(self, sets: Iterable[frozenset[str]]) -> list[int]:
        """Return the numbers here of sets that have the numbers from 1 on elsewhere, by these."""
        return [LOOK_INSIDE, *map(self.number, sets)]

    def without(self, wanted: frozenset[str]) -> Collection[int]:
        """Return the numbers of all sets that have no wanted tag."""
        looked, passed = self._passed.pop(wanted, (0, set()))
        for number in range(looked, len(self.sets)):
            if wanted.isdisjoint(self.sets[number]):
                passed.add(number + 1)
        self._passed[wanted] = len(self.sets), passed
        if len(self._passed) > _KEPT_MAX:
            del self._passed[next(iter(self._passed))]
        return passed
