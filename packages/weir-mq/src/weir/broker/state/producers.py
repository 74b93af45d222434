"""What producers were told before: the replicated memory behind *OneOffset* (DESIGN §5 *Dedupe*).

A producer's row holds as many answers as its id has a window. The table keeps millions of producers
outside the garbage collector's view (counterexample 18): rows of narrow windows lie in stripes,
hash tables of bytes, and others in a bytearray each.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from weir.broker.records.snapshots import Frozen, opened
from weir.codec import Buffer
from weir.model.ids import WINDOW_AT, WINDOWS

_MASK = (1 << 64) - 1

#: epoch u32, answers ever written u32 (it wraps), next sequence u64, last stamp i64.
_HEAD = struct.Struct("<IIQq")
#: sequence u64, messages u32, offset i64, stamp i64, hash u64.
_ANSWER = struct.Struct("<QIqqQ")


class Answer(NamedTuple):
    """What an accepted batch was told, and the hash that a repeat must have.

    A chunk has no offset: -1 - the Raft index of its entry stands there.
    """

    sequence: int
    messages: int
    offset: int
    stamp: int
    hash: int


def chunk_answer(index: int) -> int:
    """Return what stands for a chunk's offset, and turn it back into its entry's Raft index."""
    return -1 - index


class Known(msgspec.Struct, frozen=True):
    """Where a producer stands: its epoch and the only sequence it may send next."""

    epoch: int
    next_sequence: int


#: Tables are dealt to so many parts: each is small enough to be copied, grown or packed at once.
PARTS = 256
#: Rows of windows up to this lie in stripes, without an object for each.
NARROW_MAX = 4


#: Later than every stamp.
_NEVER = _MASK >> 1


class _Part:
    """Some producers' rows. What a snapshot of an earlier epoch holds is not written to."""

    __slots__ = ("epoch", "oldest", "rows")

    def __init__(self, rows: dict[int, bytearray], epoch: int, oldest: int) -> None:
        self.rows = rows
        self.epoch = epoch
        #: No last stamp of a row lies below it.
        self.oldest = oldest


#: Of a row in a stripe: producer u64, epoch u32, answers written u32: from twice the window on it
#: begins at the window again, so that it tells the turn, and how many places hold an answer. Behind
#: that are as many answers as the id has a window.
_NARROW_HEAD = struct.Struct("<QII")
_PRODUCER = struct.Struct("<Q")
#: Of an answer: its sequence and messages.
_SPAN = struct.Struct("<QI")
_STAMP = struct.Struct("<q")
_STAMP_OF_ANSWER = 20
_ROOM = 8
_FREE = 0xFFFFFFFF


class _Stripe:
    """Some producers' rows, all of one window: a small open-addressing hash table, row numbers in
    `places`, up to two thirds of them used, and the rows without a gap. What a snapshot of an
    earlier epoch holds is not written to.
    """

    __slots__ = ("epoch", "oldest", "places", "row_bytes", "rows", "window")

    def __init__(
        self, window: int, epoch: int, oldest: int, places: Buffer = b"", rows: Buffer = b""
    ) -> None:
        self.window = window
        self.row_bytes = _NARROW_HEAD.size + window * _ANSWER.size
        self.epoch = epoch
        #: No last stamp of a row lies below it.
        self.oldest = oldest
        self.places = array("I", bytes(places) or _FREE.to_bytes(4, "little") * _ROOM)
        self.rows = bytearray(rows)

    def __len__(self) -> int:
        return len(self.rows) // self.row_bytes

    def find(self, producer: int, mixed: int) -> int:
        """Return the byte at which a producer's row begins; -1 if it has none."""
        places, row_bytes = self.places, self.row_bytes
        mask = len(places) - 1
        place = mixed >> 32 & mask
        is_at, packed = self.rows.startswith, _PRODUCER.pack(producer)
        while (number := places[place]) != _FREE:
            at = number * row_bytes
            if is_at(packed, at):
                return at
            place = place + 1 & mask
        return -1

    def add(self, producer: int) -> int:
        """Append a row without answers of a producer that has none yet; return where it begins."""
        begin = len(self.rows)
        count = begin // self.row_bytes + 1
        self.rows += _PRODUCER.pack(producer) + bytes(self.row_bytes - _PRODUCER.size)
        if 3 * count > 2 * len(self.places):
            self._place_all(2 * len(self.places))
        else:
            places, mask = self.places, len(self.places) - 1
            place = (producer * _GOLDEN & _MASK) >> 32 & mask
            while places[place] != _FREE:
                place = place + 1 & mask
            places[place] = count - 1
        return begin

    def stamps(self) -> list[int]:
        """Return the last stamp of each row."""
        rows, window = self.rows, self.window
        found = []
        for at in range(0, len(rows), self.row_bytes):
            _, _, written = _NARROW_HEAD.unpack_from(rows, at)
            last = at + _NARROW_HEAD.size + (written - 1) % window * _ANSWER.size
            found.append(_STAMP.unpack_from(rows, last + _STAMP_OF_ANSWER)[0])
        return found

    def kept(self, are_kept: list[bool], epoch: int, oldest: int) -> _Stripe:
        """Return a stripe with some of these rows."""
        size = self.row_bytes
        rows = b"".join(
            self.rows[at * size : (at + 1) * size] for at, is_kept in enumerate(are_kept) if is_kept
        )
        stripe = _Stripe(self.window, epoch, oldest, rows=rows)
        room = _ROOM
        while 3 * len(stripe) > 2 * room:
            room *= 2
        stripe._place_all(room)
        return stripe

    def _place_all(self, room: int) -> None:
        self.places = places = array("I", [_FREE]) * room
        row, mask = struct.Struct(f"<Q{self.row_bytes - _PRODUCER.size}x"), room - 1
        for number, (producer,) in enumerate(row.iter_unpack(self.rows)):
            place = (producer * _GOLDEN & _MASK) >> 32 & mask
            while places[place] != _FREE:
                place = place + 1 & mask
            places[place] = number


#: 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4): ids are stamps,
#: of which the lowest bits are mostly 0.
_GOLDEN = 0x9E3779B97F4A7C15


class ProducerTable:
    """Per producer its epoch, next sequence, and the last answers, as many as its id has a window.

    In `PARTS`, and as many stripes for each narrow window, each there from its first producer on: a
    snapshot shares them all, and one is copied when it is next written to.
    """

    __slots__ = ("_epoch", "_parts", "_stripes", "oldest")

    def __init__(self) -> None:
        """Know nobody."""
        self._parts: dict[int, _Part] = {}
        #: By the code of their window, times `PARTS`, and their number.
        self._stripes: dict[int, _Stripe] = {}
        #: No last stamp of a producer lies below it.
        self.oldest = _NEVER
        #: Counts the snapshots.
        self._epoch = 0

    def __len__(self) -> int:
        wide = sum(len(part.rows) for part in self._parts.values())
        return wide + sum(map(len, self._stripes.values()))

    def _own(self, number: int) -> _Part:
        """Return a part, to be written to."""
        part = self._parts.get(number)
        if part is None:
            part = self._parts[number] = _Part({}, self._epoch, _NEVER)
        elif part.epoch != self._epoch:
            copies = {producer: row[:] for producer, row in part.rows.items()}
            part = self._parts[number] = _Part(copies, self._epoch, part.oldest)
        return part

    def _own_stripe(self, key: int) -> _Stripe:
        """Return a stripe, to be written to."""
        stripe = self._stripes.get(key)
        if stripe is None:
            window = WINDOWS[key // PARTS]
            stripe = self._stripes[key] = _Stripe(window, self._epoch, _NEVER)
        elif stripe.epoch != self._epoch:
            view = memoryview(stripe.places).cast("B")
            stripe = self._stripes[key] = _Stripe(
                stripe.window, self._epoch, stripe.oldest, view, stripe.rows
            )
        return stripe

    def known(self, producer: int) -> Known | None:
        """Return where a producer stands; None if it never wrote here, or expired."""
        code = producer >> WINDOW_AT
        if code and WINDOWS[code & 7] <= NARROW_MAX:
            mixed = producer * _GOLDEN & _MASK
            stripe = self._stripes.get((code & 7) * PARTS | mixed >> 56)
            at = stripe.find(producer, mixed) if stripe is not None else -1
            if stripe is None or at < 0:
                return None
            _, epoch, written = _NARROW_HEAD.unpack_from(stripe.rows, at)
            last = at + _NARROW_HEAD.size + (written - 1) % stripe.window * _ANSWER.size
            sequence, messages = _SPAN.unpack_from(stripe.rows, last)
            return Known(epoch, sequence + messages)
        part = self._parts.get((producer ^ producer >> 16) % PARTS)
        row = part.rows.get(producer) if part is not None else None
        if row is None:
            return None
        epoch, _, next_sequence, _ = _HEAD.unpack_from(row)
        return Known(epoch, next_sequence)

    def answer(self, producer: int, sequence: int) -> Answer | None:
        """Return the kept answer for the batch that began with `sequence`, if it is kept still."""
        code = producer >> WINDOW_AT
        if code and WINDOWS[code & 7] <= NARROW_MAX:
            mixed = producer * _GOLDEN & _MASK
            stripe = self._stripes.get((code & 7) * PARTS | mixed >> 56)
            at = stripe.find(producer, mixed) if stripe is not None else -1
            if stripe is None or at < 0:
                return None
            written = _NARROW_HEAD.unpack_from(stripe.rows, at)[2]
            at += _NARROW_HEAD.size
            end = at + min(written, stripe.window) * _ANSWER.size
            return _find(stripe.rows, at, end, sequence)
        part = self._parts.get((producer ^ producer >> 16) % PARTS)
        row = part.rows.get(producer) if part is not None else None
        return _find(row, _HEAD.size, len(row), sequence) if row is not None else None

    def record(self, producer: int, epoch: int, answer: Answer) -> None:
        """Note a committed batch; a new epoch forgets the answers of the old one."""
        code = producer >> WINDOW_AT & 7
        window = WINDOWS[code]
        if code and window <= NARROW_MAX:
            self._record_narrow(code, producer, epoch, answer)
            return
        number = (producer ^ producer >> 16) % PARTS
        part = self._parts.get(number)
        if part is None or part.epoch != self._epoch:
            part = self._own(number)
        if answer.stamp < part.oldest:
            part.oldest = answer.stamp
            self.oldest = min(self.oldest, answer.stamp)
        rows = part.rows
        row, written = rows.get(producer), 0
        if row is not None:
            held, written, _, _ = _HEAD.unpack_from(row)
            if held != epoch:
                row, written = None, 0
        if row is None:
            row = rows[producer] = bytearray(_HEAD.size)
        at = _HEAD.size + written % window * _ANSWER.size
        if at == len(row):
            row += bytes(_ANSWER.size)
        _ANSWER.pack_into(row, at, *answer)
        # 2^32 is a multiple of each window, so that wrapping keeps the turn.
        written = (written + 1) & 0xFFFFFFFF
        _HEAD.pack_into(row, 0, epoch, written, answer.sequence + answer.messages, answer.stamp)

    def _record_narrow(self, code: int, producer: int, epoch: int, answer: Answer) -> None:
        mixed = producer * _GOLDEN & _MASK
        key = code * PARTS | mixed >> 56
        stripe = self._stripes.get(key)
        if stripe is None or stripe.epoch != self._epoch:
            stripe = self._own_stripe(key)
        if answer.stamp < stripe.oldest:
            stripe.oldest = answer.stamp
            self.oldest = min(self.oldest, answer.stamp)
        at, written, window = stripe.find(producer, mixed), 0, stripe.window
        if at < 0:
            at = stripe.add(producer)
        else:
            _, held, written = _NARROW_HEAD.unpack_from(stripe.rows, at)
            if held != epoch:
                written = 0
        place = at + _NARROW_HEAD.size + written % window * _ANSWER.size
        _ANSWER.pack_into(stripe.rows, place, *answer)
        written = written + 1 if written + 1 < 2 * window else window
        _NARROW_HEAD.pack_into(stripe.rows, at, producer, epoch, written)

    def expire(self, horizon: int, numbers: Iterable[int]) -> int:
        """Forget producers of some parts whose last stamp is below `horizon`; return how many."""
        gone = 0
        for number in numbers:
            number %= PARTS
            part = self._parts.get(number)
            # Mostly there is no such part, or none in it can be old: that is not looked up.
            if part is not None and part.oldest < horizon:
                gone += self._forget(horizon, number, part)
            for code in _NARROW_CODES:
                stripe = self._stripes.get(code * PARTS | number)
                if stripe is not None and stripe.oldest < horizon:
                    gone += self._forget_narrow(horizon, code * PARTS | number, stripe)
        oldest = [part.oldest for part in self._parts.values()]
        oldest += [stripe.oldest for stripe in self._stripes.values()]
        self.oldest = min(oldest, default=_NEVER)
        return gone

    def _forget(self, horizon: int, number: int, part: _Part) -> int:
        stamps = {producer: _HEAD.unpack_from(row)[3] for producer, row in part.rows.items()}
        old = [producer for producer, stamp in stamps.items() if stamp < horizon]
        part.oldest = min((stamp for stamp in stamps.values() if stamp >= horizon), default=_NEVER)
        if old:
            rows = self._own(number).rows
            for producer in old:
                del rows[producer]
        return len(old)

    def _forget_narrow(self, horizon: int, key: int, stripe: _Stripe) -> int:
        stamps = stripe.stamps()
        are_kept = [stamp >= horizon for stamp in stamps]
        stripe.oldest = min((stamp for stamp in stamps if stamp >= horizon), default=_NEVER)
        gone = are_kept.count(False)
        if gone == len(stripe):
            del self._stripes[key]
        elif gone:
            self._stripes[key] = stripe.kept(are_kept, self._epoch, stripe.oldest)
        return gone

    def encode(self) -> list[Frozen]:
        """Return the parts for a snapshot, one by one: producers, bytes of each row, rows. What is
        written from now on is in copies; `encode_narrow` says the rest.
        """
        self._epoch += 1
        return [Frozen(partial(_packed_rows, part.rows)) for part in self._parts.values()]

    def encode_narrow(self) -> list[Frozen]:
        """Return the stripes for the snapshot that `encode` began, one by one: code of the window
        times `PARTS` and number, oldest last stamp, places, rows.
        """
        return [
            Frozen(partial(_packed_stripe, key, stripe.oldest, stripe.places, stripe.rows))
            for key, stripe in self._stripes.items()
        ]

    @classmethod
    def decode(cls, parts: list[Any], stripes: Iterable[Any] = ()) -> ProducerTable:
        """Return the table of a snapshot."""
        table = cls()
        for packed, sizes, rows in map(opened, parts):
            producers, lengths, at = array("Q"), array("I"), 0
            producers.frombytes(packed)
            lengths.frombytes(sizes)
            for producer, length in zip(producers, lengths, strict=True):
                part = table._own((producer ^ producer >> 16) % PARTS)
                row = part.rows[producer] = bytearray(rows[at : at + length])
                part.oldest = min(part.oldest, _HEAD.unpack_from(row)[3])
                table.oldest = min(table.oldest, part.oldest)
                at += length
        for key, oldest, places, rows in map(opened, stripes):
            table._stripes[key] = _Stripe(WINDOWS[key // PARTS], 0, oldest, places, rows)
            table.oldest = min(table.oldest, oldest)
        return table


_NARROW_CODES = tuple(code for code, window in enumerate(WINDOWS) if code and window <= NARROW_MAX)


def _find(row: bytearray, at: int, end: int, sequence: int) -> Answer | None:
    """Return the answer of a sequence among those from byte `at` on."""
    for place in range(at, end, _ANSWER.size):
        answer = Answer._make(_ANSWER.unpack_from(row, place))
        if answer.sequence == sequence:
            return answer
    return None


def _packed_rows(rows: dict[int, bytearray]) -> tuple[bytes, bytes, bytes]:
    lengths = array("I", map(len, rows.values()))
    return array("Q", rows).tobytes(), lengths.tobytes(), b"".join(rows.values())


def _packed_stripe(
    key: int, oldest: int, places: array[int], rows: bytearray
) -> tuple[int, int, Buffer, Buffer]:
    return key, oldest, memoryview(places).cast("B"), rows
