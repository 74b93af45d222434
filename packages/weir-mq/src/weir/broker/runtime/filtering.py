"""Selects, of the messages that were read, those for a reader of some tags (docs/adr/0102).

Batches without a wanted tag are left out, and others cut to a slice where that is worth it. Slices
are kept for the next reader, up to a number of bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from weir.broker.state.ranges import Ranges
from weir.codec import Buffer
from weir.errors import BadBatch, MissingLibrary
from weir.model.batch import Batch, Columns
from weir.model.limits import MIB
from weir.model.slices import WHOLE, Part, gatherer, part_with, tags_of

#: So many messages are looked at for one answer, the last batch of them whole: at 90 ns each,
#: without Arrow, that is 5 ms. Nothing here has a clock.
EXAMINED_MAX = 50_000
SLICES_BYTES_MAX = 8 * MIB
_CHUNK = int(Columns.CHUNK)
#: What keeping a slice takes besides its bytes, and each wanted tag besides its characters.
_SLICE_BYTES, _TAG_BYTES = 512, 64
#: Of which batch, as it was stamped, and for which tags.
_Key = tuple[int, int, int, int, frozenset[str]]


class Slices:
    """The slices that were made last, by batch and tags; the one used longest ago leaves first."""

    __slots__ = ("_bytes", "_bytes_max", "_kept")

    def __init__(self, bytes_max: int = SLICES_BYTES_MAX) -> None:
        """Keep none yet, and no more than so many bytes."""
        self._bytes = 0
        self._bytes_max = bytes_max
        self._kept: OrderedDict[_Key, Part] = OrderedDict()

    def part(self, batch: Batch, tags: frozenset[str], group: int) -> Part:
        """Return what is served of a batch; all of one that does not open here."""
        header = batch.header
        key = (group, header.first_offset, header.stamp, header.hash, tags)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        try:
            part = part_with(batch, tags, group)
        except (BadBatch, MissingLibrary):
            return Part(batch.view, 0)  # the reader is told what is wrong, or can open it
        if isinstance(part.bytes, bytes) and part.bytes:  # nothing was copied otherwise
            self._keep(key, part)
        return part

    def _keep(self, key: _Key, part: Part) -> None:
        self._kept[key] = part._replace(examined=0)
        self._bytes += _size(key, part)
        while self._bytes > self._bytes_max:
            self._bytes -= _size(*self._kept.popitem(last=False))


def _size(key: _Key, part: Part) -> int:
    """Return what a slice takes; a reader may ask for 64 long tags, each time for others."""
    return len(part.bytes) + _SLICE_BYTES + sum(_TAG_BYTES + len(tag) for tag in key[-1])


def matching_runs(batch: Batch, tags: frozenset[str]) -> list[tuple[int, int]]:
    """Return the runs of offsets [first, next) of a batch's messages that have one of these tags;
    all of one that does not open here: who gets it is told what is wrong.
    """
    header = batch.header
    whole = [(header.first_offset, header.next_offset)]
    if header.columns & _CHUNK:
        return []
    try:
        listed = tags_of(batch)
        wanted = [tag for tag in listed if tag in tags]
        column = batch.tag_column
    except (BadBatch, MissingLibrary):
        return whole
    if len(wanted) == len(listed):
        return whole
    if not wanted:
        return []
    if header.columns & WHOLE or column is None:
        return whole
    found = Ranges()
    offsets = batch.offsets
    for row in gatherer().matching(*column, tags):
        found.add(offsets[row], offsets[row] + 1)
    return list(found)


class Filtered(msgspec.Struct, frozen=True):
    """Batches, and runs of offsets [first, next) that were looked at and have no wanted tag: all of
    what lies from where the fetch began up to `behind`, but for what is void.
    """

    batches: tuple[Buffer, ...]
    skipped: tuple[tuple[int, int], ...]
    behind: int


def filtered(
    batches: Iterable[Batch], offset: int, behind: int, passed: Sequence[tuple[int, int]],
    voids: Ranges, tags: frozenset[str], group: int, slices: Slices, ends_early: bool = True,
) -> Filtered:  # fmt: skip
    """Return what is served of [offset, behind), of which `batches` were read and the runs `passed`
    over. It ends with a batch before `behind` if more messages would have to be looked at than one
    answer may, where it may `end early`.

    What was neither read nor passed over is in nothing that is returned: a reader sees that it is
    missing.
    """
    found: list[Buffer] = []
    skipped = Ranges()
    examined = 0
    for batch in batches:
        first, last = batch.header.first_offset, batch.header.next_offset
        if last <= offset or voids.covers(last - 1, last):
            continue
        if ends_early and examined >= EXAMINED_MAX:
            behind = first
            break
        part = slices.part(batch, tags, group)
        examined += part.examined
        if part.bytes:
            found.append(part.bytes)
        else:
            skipped.add(max(first, offset), last)
    for first, last in passed:
        skipped.add(first, min(last, behind))
    for first, last in voids.within(offset, behind):
        skipped.discard(first, last)
    return Filtered(tuple(found), tuple(skipped), behind)
