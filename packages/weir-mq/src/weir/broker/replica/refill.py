"""Entries whose payloads rotted here, and that other nodes have under the same name.

Group, index and term name an entry: every node that holds an entry of that name holds the same
bytes, so any node can give it, whether it leads, votes, or is damaged itself (docs/adr 0017).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from weir.broker.api.effects import SendToPeer, Work
from weir.broker.api.events import Findings, GroupComplete
from weir.broker.api.settings import Layout
from weir.broker.records.entries import NOOP
from weir.broker.replica.frames import (
    FrameKind,
    Given,
    Name,
    pack_ask,
    pack_give,
    unpack_ask,
    unpack_give,
)
from weir.broker.replica.node_state import PeerLinks
from weir.broker.replica.writer import Writer
from weir.broker.runtime.live_traffic import LiveTraffic
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.reads import PublishedReading, Reads
from weir.codec import Buffer
from weir.errors import Refused
from weir.model.limits import MIB
from weir.order.clock import Time
from weir.protocol.link import LinkFrame
from weir.storage.format.frame import Kind
from weir.storage.group_index import Filled, Stored
from weir.storage.log import Log
from weir.storage.log_reader import Reading
from weir.storage.scrub import MendPiece, filled_by

#: Of entries asked for at once: how many, and about how many bytes.
_TOGETHER = 64
_TOGETHER_BYTES = MIB
#: A node that does not answer is asked again, or another is.
_ASK_EVERY_MS = 500
#: A group is given up here by other means when nobody gave anything for so long.
HOPE_MS = 3_000


class _Lack(msgspec.Struct):
    """What one group lacks, and how far it is filled in."""

    wanted: dict[int, Stored]
    filled: dict[int, Filled] = msgspec.field(default_factory=dict)
    #: Entries that are being written to the disk.
    mending: set[int] = msgspec.field(default_factory=set)
    #: Those that came, and for which there is no sound header to put them behind.
    unfillable: set[int] = msgspec.field(default_factory=set)
    asked: int = 0
    asked_ms: int = -_ASK_EVERY_MS
    #: When more is asked for, or the same again.
    due_ms: int = -_ASK_EVERY_MS
    #: When something was gained last, or asked for first.
    gained_ms: int | None = None


class Refill:
    """Fills in what rotted in the logs of one shard, and gives others what they ask for."""

    __slots__ = ("_findings", "_giving", "_lacks", "_layout", "_links", "_outbox", "_reads",
                 "_time", "_traffic", "_writers")  # fmt: skip

    def __init__(
        self,
        writers: Mapping[int, Writer],
        layout: Layout,
        reads: Reads,
        outbox: Outbox,
        time: Time,
        links: PeerLinks,
        findings: Findings,
        traffic: LiveTraffic,
    ) -> None:
        """Lack nothing at first; `links` lead to nodes that may have the missing entries. A group
        that lacks nothing any more goes to `findings`. Refills make way for `traffic`.
        """
        self._writers = writers
        self._layout = layout
        self._reads = reads
        self._outbox = outbox
        self._time = time
        self._links = links
        self._findings = findings
        self._traffic = traffic
        self._lacks: dict[int, _Lack] = {}
        #: By place, what is being read for it.
        self._giving: dict[int, _Gift] = {}

    # -- what is missing here ----------------------------------------------------------------

    def lack(self, group: int, indices: Iterable[int]) -> None:
        """Ask for entries of a group until it has them, or is gone."""
        log = self._log(group)
        found = {i: at for i in indices if log and (at := log.reader.stored(group, i)) is not None}
        if not found:
            return
        lack = self._lacks.setdefault(group, _Lack({}))
        lack.wanted.update(found)
        for index, at in found.items():
            if at.kind is Kind.NOOP:  # they are all the same
                self._mend(group, lack, Given((index, at.term), NOOP))

    def rotted(self, number: int, index: int, place: int) -> None:
        """The scrub found an entry of a group to be rotten at a place."""
        writer = self._writers[self._layout.log_of(number)]
        group, stored = writer.groups.get(number), writer.log.reader.stored(number, index)
        known = self._lacks.get(number, _Lack({}))
        if group is None or group.damage is not None or index in known.wanted:
            return
        if stored is not None and stored.place == place:
            group.storage.rotted(1)
            self.lack(number, (index,))

    def met_rot(self, reading: Work) -> bool:
        """A reading found its first entry rotten; return whether that may come from elsewhere."""
        if isinstance(reading, PublishedReading):
            reading = reading.from_disk or reading
        if not isinstance(reading, Reading) or not reading.entries:
            return False
        number, first = reading.group, reading.entries[0]
        group = self._writers[self._layout.log_of(number)].groups.get(number)
        if group is None or not group.has_others:
            return False
        self.rotted(number, first.index, first.place)
        lack = self._lacks.get(number)
        # Entries that cannot be filled in here are read from the next leader.
        return lack is not None and (bool(lack.unfillable) or self.is_hopeful(number))

    def forget(self, group: int) -> None:
        """A group is gone from here, or begins anew."""
        self._lacks.pop(group, None)

    def is_hopeful(self, group: int) -> bool:
        """Whether what a group lacks may come yet, so that nothing else need be done about it."""
        lack = self._lacks.get(group)
        if lack is None or lack.unfillable:
            return False
        return lack.gained_ms is None or self._time.monotonic_ms() - lack.gained_ms < HOPE_MS

    def ask_again(self) -> None:
        """Ask for what is missing, if it is time."""
        if not self._lacks:
            return
        now = self._time.monotonic_ms()
        for group, lack in list(self._lacks.items()):
            if now >= lack.due_ms:
                self._ask(group, lack)

    def _ask(self, group: int, lack: _Lack) -> None:
        places, log = self._links.places_of(group), self._log(group)
        if not places or log is None:
            return
        lack.asked_ms = now = self._time.monotonic_ms()
        lack.due_ms = now + _ASK_EVERY_MS
        lack.gained_ms = now if lack.gained_ms is None else lack.gained_ms
        for index, stored in list(lack.wanted.items()):
            if log.reader.stored(group, index) != stored:
                del lack.wanted[index]  # retention let it go, or it was copied
                lack.unfillable.discard(index)
        passed = lack.mending | lack.unfillable
        waiting = [at for index, at in sorted(lack.wanted.items()) if index not in passed]
        # What nobody has must not keep the others from being asked for.
        skipped = lack.asked // len(places) * _TOGETHER % (len(waiting) or 1)
        some = _as_many([*waiting[skipped:], *waiting[:skipped]])
        if some:
            place = places[lack.asked % len(places)]
            lack.asked += 1
            frame = pack_ask(group, [(at.index, at.term) for at in some])
            self._outbox.put(SendToPeer(place, False, frame))
        self._end(group, lack)

    def _take(self, group: int, given: Sequence[Given]) -> None:
        lack = self._lacks.get(group)
        if lack is None:
            return
        for one in given:
            self._mend(group, lack, one)
        if lack.mending:
            lack.gained_ms = self._time.monotonic_ms()
        elif lack.asked % max(len(self._links.places_of(group)), 1):
            self._ask(group, lack)  # the next one may have it

    def _mend(self, group: int, lack: _Lack, given: Given) -> None:
        index, term = given.name
        at, payload = lack.wanted.get(index), given.payload
        if at is None or index in lack.mending:
            return
        if (at.term, at.kind, at.length) != (term, payload.kind, payload.size):
            return
        writer = self._writers[self._layout.log_of(group)]
        piece = writer.log.reader.mend(group, index, b"".join(payload.buffers))
        if piece is not None and piece.stored == at:
            lack.mending.add(index)
            writer.mend(piece)

    def mended(self, piece: MendPiece, is_sound: bool) -> None:
        """A piece was run; whether its entry `is_sound` now."""
        group, index = piece.group, piece.stored.index
        lack = self._lacks.get(group)
        if lack is None or index not in lack.mending:
            return
        lack.mending.discard(index)
        if is_sound:
            lack.wanted.pop(index, None)
            lack.filled[index] = filled_by(piece)
            lack.gained_ms = self._time.monotonic_ms()
        else:
            lack.unfillable.add(index)
        if not lack.mending:
            if lack.wanted and is_sound:
                now = self._time.monotonic_ms()
                if rest_ms := self._traffic.rest_ms(now - lack.asked_ms):
                    lack.due_ms = now + rest_ms
                else:
                    self._ask(group, lack)
            self._end(group, lack)

    def _end(self, group: int, lack: _Lack) -> None:
        if lack.wanted or lack.mending or self._lacks.get(group) is not lack:
            return
        del self._lacks[group]
        if (log := self._log(group)) is not None:
            log.reader.fill(group, lack.filled)
        self._findings.append(GroupComplete(group))

    # -- what others ask for -----------------------------------------------------------------

    def take(self, place: int, frame: LinkFrame) -> None:
        """Take what another node asks for or gives. Raises `BadMessage`."""
        if frame.kind == FrameKind.REFILL_GIVE:
            self._take(frame.group, unpack_give(frame))
        else:
            self._give(place, frame.group, unpack_ask(frame))

    def _give(self, place: int, group: int, names: Sequence[Name]) -> None:
        log = self._log(group)
        if log is None or place in self._giving:
            return
        there = [log.reader.stored(group, index) for index, _ in names[:_TOGETHER]]
        same = [at for at, name in zip(there, names, strict=False) if at and at.term == name[1]]
        readings = [
            (at, log.reader.read_raw(group, at.index, at.index + 1, 0)) for at in _as_many(same)
        ]
        found = [(at, reading) for at, reading in readings if reading is not None]
        gift = self._giving[place] = _Gift(len(found))
        for at, reading in found:
            self._reads.start(reading, partial(self._was_read, place, group, at), at_once=True)
        if not found:
            self._send(place, group, gift)

    def _was_read(
        self, place: int, group: int, at: Stored, payloads: Sequence[Buffer],
        failure: Refused | None,
    ) -> None:  # fmt: skip
        gift = self._giving[place]
        gift.reading -= 1
        if failure is None:  # else it rotted here, too
            gift.found.append((at, payloads[0]))
        if not gift.reading:
            self._send(place, group, gift)

    def _send(self, place: int, group: int, gift: _Gift) -> None:
        del self._giving[place]
        rows = [((at.index, at.term), at.kind, payload) for at, payload in gift.found]
        self._outbox.put(SendToPeer(place, False, pack_give(group, rows)))

    def _log(self, group: int) -> Log | None:
        writer = self._writers.get(self._layout.log_of(group))
        return writer.log if writer is not None else None


class _Gift(msgspec.Struct):
    """What is being read for another node."""

    reading: int
    found: list[tuple[Stored, Buffer]] = msgspec.field(default_factory=list)


def _as_many(entries: Sequence[Stored]) -> list[Stored]:
    """Return as many of the first entries as go together: one at least."""
    some: list[Stored] = []
    room = _TOGETHER_BYTES
    for at in entries[:_TOGETHER]:
        room -= at.length
        if some and room < 0:
            break
        some.append(at)
    return some
