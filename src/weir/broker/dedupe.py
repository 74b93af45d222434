"""What was accepted before: the replicated memory behind *OneOffset* (DESIGN §5 *Dedupe*).

Both tables keep millions of producers outside the garbage collector's view (counterexample 18):
values are bytearrays or packed arrays, never objects that a collection would walk.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from weir.model.limits import PIPELINE_WINDOW

#: epoch u32, answers ever written u32 (it wraps), next sequence u64, last stamp i64.
_HEAD = struct.Struct("<IIQq")
#: sequence u64, messages u32, offset i64, stamp i64, hash u64.
_ANSWER = struct.Struct("<QIqqQ")


class Answer(NamedTuple):
    """What an accepted batch was told, and the hash that a repeat must have."""

    sequence: int
    messages: int
    offset: int
    stamp: int
    hash: int


class Known(NamedTuple):
    """Where a producer stands: its epoch and the only sequence it may send next."""

    epoch: int
    next_sequence: int


class ProducerTable:
    """Per producer its epoch, next sequence, and the last 64 answers (the pipelining window)."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        """Know nobody."""
        self._rows: dict[int, bytearray] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def known(self, producer: int) -> Known | None:
        """Return where a producer stands; None if it never wrote here, or expired."""
        row = self._rows.get(producer)
        if row is None:
            return None
        epoch, _, next_sequence, _ = _HEAD.unpack_from(row)
        return Known(epoch, next_sequence)

    def answer(self, producer: int, sequence: int) -> Answer | None:
        """Return the kept answer for the batch that began with `sequence`, if it is kept still."""
        row = self._rows.get(producer, b"")
        for at in range(_HEAD.size, len(row), _ANSWER.size):
            answer = Answer._make(_ANSWER.unpack_from(row, at))
            if answer.sequence == sequence:
                return answer
        return None

    def record(self, producer: int, epoch: int, answer: Answer) -> None:
        """Note a committed batch; a new epoch forgets the answers of the old one."""
        row = self._rows.get(producer)
        if row is None or _HEAD.unpack_from(row)[0] != epoch:
            row = self._rows[producer] = bytearray(_HEAD.size)
        written = _HEAD.unpack_from(row)[1]
        at = _HEAD.size + written % PIPELINE_WINDOW * _ANSWER.size
        if at == len(row):
            row += bytes(_ANSWER.size)
        _ANSWER.pack_into(row, at, *answer)
        # 2^32 is a multiple of the window, so that wrapping keeps the turn.
        written = (written + 1) & 0xFFFFFFFF
        _HEAD.pack_into(row, 0, epoch, written, answer.sequence + answer.messages, answer.stamp)

    def expire(self, horizon: int) -> int:
        """Forget producers whose last stamp is below `horizon`; return how many."""
        old = [p for p, row in self._rows.items() if _HEAD.unpack_from(row)[3] < horizon]
        for producer in old:
            del self._rows[producer]
        return len(old)

    def encode(self) -> list[tuple[int, bytes]]:
        """Return the table for a snapshot."""
        return [(producer, bytes(row)) for producer, row in self._rows.items()]

    @classmethod
    def decode(cls, rows: list[tuple[int, bytes]]) -> ProducerTable:
        """Return the table of a snapshot."""
        table = cls()
        table._rows = {producer: bytearray(row) for producer, row in rows}
        return table


class Origin(NamedTuple):
    """Where a device, (hub, sn), stands: its boot, next sequence, and the last offset it got."""

    boot: int
    next_sequence: int
    offset: int
    stamp: int


_STRIPES = 256
_ROOM = 8
_FREE = 0xFFFF


class _Stripe:
    """A small open-addressing hash table in packed arrays; it doubles when two thirds full."""

    __slots__ = ("boots", "hubs", "nexts", "offsets", "sns", "stamps", "used")

    def __init__(self, room: int) -> None:
        self.used = 0
        self.hubs = array("Q", bytes(8 * room))
        self.sns = array("H", [_FREE]) * room
        self.boots = array("I", bytes(4 * room))
        self.nexts = array("Q", bytes(8 * room))
        self.offsets = array("q", bytes(8 * room))
        self.stamps = array("q", bytes(8 * room))

    def find(self, hub: int, sn: int, mixed: int) -> int:
        """Return the place of (hub, sn), or the free place where it belongs."""
        mask = len(self.hubs) - 1
        place = mixed & mask
        while self.sns[place] != _FREE and (self.hubs[place] != hub or self.sns[place] != sn):
            place = (place + 1) & mask
        return place

    def rows(self) -> Iterator[tuple[int, int, Origin]]:
        """Yield hub, sn and standing of every device kept."""
        for place, sn in enumerate(self.sns):
            if sn != _FREE:
                yield self.hubs[place], sn, self.at(place)

    def at(self, place: int) -> Origin:
        """Return the standing kept at a place."""
        return Origin(self.boots[place], self.nexts[place], self.offsets[place], self.stamps[place])

    def put(self, place: int, hub: int, sn: int, origin: Origin) -> None:
        """Write a standing at a place."""
        self.used += self.sns[place] == _FREE
        self.hubs[place], self.sns[place] = hub, sn
        self.boots[place], self.nexts[place], self.offsets[place], self.stamps[place] = origin


class OriginTable:
    """Per device its boot, next sequence and last answer; 256 stripes, so that growing one moves
    a small part and never stops the loop. A stripe exists from its first device on.
    """

    __slots__ = ("_stripes",)

    def __init__(self) -> None:
        """Know nobody."""
        self._stripes: dict[int, _Stripe] = {}

    def __len__(self) -> int:
        return sum(stripe.used for stripe in self._stripes.values())

    def known(self, hub: int, sn: int) -> Origin | None:
        """Return where a device stands; None if it never sent a sequence here, or expired."""
        mixed = _mix(hub, sn)
        stripe = self._stripes.get(mixed & (_STRIPES - 1))
        if stripe is None:
            return None
        place = stripe.find(hub, sn, mixed >> 8)
        return None if stripe.sns[place] == _FREE else stripe.at(place)

    def record(self, hub: int, sn: int, origin: Origin) -> None:
        """Note a committed message of a device."""
        mixed = _mix(hub, sn)
        number = mixed & (_STRIPES - 1)
        stripe = self._stripes.get(number)
        if stripe is None:
            stripe = self._stripes[number] = _Stripe(_ROOM)
        if 3 * (stripe.used + 1) > 2 * len(stripe.hubs):
            stripe = self._stripes[number] = _copied(stripe, 2 * len(stripe.hubs), 0)
        stripe.put(stripe.find(hub, sn, mixed >> 8), hub, sn, origin)

    def expire(self, horizon: int) -> int:
        """Forget devices whose last stamp is below `horizon`; return how many."""
        before = len(self)
        for number, stripe in self._stripes.items():
            self._stripes[number] = _copied(stripe, len(stripe.hubs), horizon)
        return before - len(self)

    def encode(self) -> list[tuple[int, int, int, int, int, int]]:
        """Return the table for a snapshot: hub, sn, boot, next sequence, offset, stamp."""
        return [(hub, sn, *origin) for s in self._stripes.values() for hub, sn, origin in s.rows()]

    @classmethod
    def decode(cls, rows: list[tuple[int, int, int, int, int, int]]) -> OriginTable:
        """Return the table of a snapshot."""
        table = cls()
        for hub, sn, *origin in rows:
            table.record(hub, sn, Origin._make(origin))
        return table


def _copied(stripe: _Stripe, room: int, horizon: int) -> _Stripe:
    copy = _Stripe(room)
    for hub, sn, origin in stripe.rows():
        if origin.stamp >= horizon:
            copy.put(copy.find(hub, sn, _mix(hub, sn) >> 8), hub, sn, origin)
    return copy


def _mix(hub: int, sn: int) -> int:
    """Spread (hub, sn) over 64 bits: hubs of one maker differ in a few low bits only."""
    mixed = (hub ^ sn << 56) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 >> 8 & 0xFFFFFFFFFFFFFFFF
