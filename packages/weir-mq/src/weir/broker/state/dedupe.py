"""What devices sent before: the replicated memory behind *OneOffset* (DESIGN §5 *Dedupe*).

The table keeps millions of devices outside the garbage collector's view (counterexample 18): values
are packed arrays, never objects that a collection would walk. Of producers: `producers`.
"""

from __future__ import annotations

import struct
from array import array
from functools import partial
from typing import Any, NamedTuple

import xxhash

from weir.broker.records.snapshots import Frozen, opened
from weir.codec import Buffer
from weir.model.columns import boot_of, epoch_of, generation_of
from weir.model.limits import BOOT_MAX, DEVICE_WINDOW

_MASK = (1 << 64) - 1

#: Each value under (sequence modulo the window) is the u32 hash of what was sent under it.
_RING = struct.Struct(f"<{DEVICE_WINDOW}I")
_NO_RING = bytes(_RING.size)
_HASH = struct.Struct("<I")
_REST_OF_RING = _NO_RING[_HASH.size :]


def value_hash(value: Buffer) -> int:
    """Return the 32 bits that stand for a device's value: the lower half of its xxh3-64."""
    return int(xxhash.xxh3_64_intdigest(value)) & 0xFFFFFFFF


class Origin(NamedTuple):
    """Where a device, (hub, sn), stands: its epoch (generation and boot, see `epoch_of`), next
    sequence, the last offset it got, and the hashes of its last `DEVICE_WINDOW` values.
    """

    epoch: int
    next_sequence: int
    offset: int
    ring: bytes = _NO_RING

    @classmethod
    def first(cls, epoch: int, offset: int, hash: int) -> Origin:
        """Return where a device stands after its first message, sequence 0."""
        return cls(epoch, 1, offset, _HASH.pack(hash) + _REST_OF_RING)

    def after(self, sequence: int, offset: int, hash: int) -> Origin:
        """Return where the device stands after its next message."""
        at = sequence % DEVICE_WINDOW * _HASH.size
        ring = self.ring[:at] + _HASH.pack(hash) + self.ring[at + _HASH.size :]
        return Origin(self.epoch, sequence + 1, offset, ring)

    def holds(self, sequence: int, hash: int) -> bool:
        """Whether an earlier sequence is kept still, and was used with a value of that hash."""
        kept = 0 < self.next_sequence - sequence <= DEVICE_WINDOW
        at = sequence % DEVICE_WINDOW * _HASH.size
        return kept and _HASH.unpack_from(self.ring, at)[0] == hash


#: A device, hub and sn, its epoch, next sequence and last offset.
Standing = tuple[int, int, int, int, int]

#: A row: hub u64, sn u8, generation u24, boot u32, next sequence u32, last offset u64, ring. Sn and
#: generation are read as one number.
_ROW = struct.Struct(f"<QIIIQ{_RING.size}s")
_ROW_BYTES = _ROW.size
_DEVICE = struct.Struct("<QB")
_DEVICE_OF_ROW = struct.Struct(f"<QB{_ROW.size - _DEVICE.size}x")
_STANDING = struct.Struct("<IIIQ")
_STANDING_AT = 8
_RING_AT = _STANDING_AT + _STANDING.size
_STRIPES = 256
#: The numbers of a hub's devices.
_SNS = 256
_ROOM = 8
_FREE = 0xFFFFFFFF


class _Stripe:
    """A small open-addressing hash table: row numbers in `places`, up to two thirds of them used,
    and the rows without a gap, so that a place that is free costs four bytes.
    """

    __slots__ = ("epoch", "places", "rows")

    def __init__(self, epoch: int, places: Buffer = b"", rows: Buffer = b"") -> None:
        self.epoch = epoch
        self.places = array("I", bytes(places) or _FREE.to_bytes(4, "little") * _ROOM)
        self.rows = bytearray(rows)

    def __len__(self) -> int:
        return len(self.rows) // _ROW_BYTES

    def packed(self) -> tuple[Buffer, Buffer]:
        """Return places and rows as they are now; not copied."""
        return memoryview(self.places).cast("B"), self.rows

    def find(self, hub: int, sn: int, mixed: int) -> tuple[int, int]:
        """Return the place of (hub, sn), or the free one where it belongs, and its row's byte.

        The byte is -1 for a free place.
        """
        places = self.places
        mask = len(places) - 1
        place = mixed & mask
        if places[place] == _FREE:  # as mostly of one that is not here yet
            return place, -1
        is_at, device = self.rows.startswith, _DEVICE.pack(hub, sn)
        while (number := places[place]) != _FREE:
            at = number * _ROW_BYTES
            if is_at(device, at):
                return place, at
            place = (place + 1) & mask
        return place, -1

    def add(self, place: int, hub: int, sn: int, epoch: int, next_sequence: int, at: int) -> int:
        """Append a row of a device that is not here yet, whose last message is at the offset `at`,
        and which has no hash yet; return the row's byte.
        """
        begin = len(self.rows)
        number = self.places[place] = begin // _ROW_BYTES
        named = sn | generation_of(epoch) << 8
        self.rows += _ROW.pack(hub, named, boot_of(epoch), next_sequence, at, _NO_RING)
        if 3 * (number + 1) > 2 * len(self.places):
            self._grow()
        return begin

    def remove(self, place: int) -> None:
        """Take the row out that a place names; others move up, so that none is searched in vain
        (Knuth, The Art of Computer Programming, 6.4, algorithm R).
        """
        places, mask = self.places, len(self.places) - 1
        number, last = places[place], len(self) - 1
        if number != last:
            hub, sn = _DEVICE.unpack_from(self.rows, last * _ROW_BYTES)
            places[self.find(hub, sn, _mix(hub, sn) >> 8)[0]] = number
            moved = self.rows[last * _ROW_BYTES :]
            self.rows[number * _ROW_BYTES : (number + 1) * _ROW_BYTES] = moved
        del self.rows[last * _ROW_BYTES :]
        hole, at = place, (place + 1) & mask
        while (other := places[at]) != _FREE:
            hub, sn = _DEVICE.unpack_from(self.rows, other * _ROW_BYTES)
            home = _mix(hub, sn) >> 8 & mask
            if (at - home) & mask >= (at - hole) & mask:
                places[hole] = other
                hole = at
            at = (at + 1) & mask
        places[hole] = _FREE

    def _grow(self) -> None:
        mask = 2 * len(self.places) - 1
        self.places = places = array("I", [_FREE]) * (mask + 1)
        for number, (hub, sn) in enumerate(_DEVICE_OF_ROW.iter_unpack(self.rows)):
            place = _mix(hub, sn) >> 8 & mask
            while places[place] != _FREE:
                place = (place + 1) & mask
            places[place] = number


class OriginTable:
    """Per device its epoch, next sequence and last answers; 256 stripes, so that growing one moves
    a small part and never stops the loop. A stripe exists from its first device on. A snapshot
    shares them all, and a stripe is copied when it is next written to.

    Devices do not expire: their number is bounded instead (docs/adr/0004).
    """

    __slots__ = ("_count", "_epoch", "_stripes", "floors")

    def __init__(self) -> None:
        """Know nobody."""
        #: With which epochs hubs may still come.
        self.floors = EpochFloors()
        self._stripes: dict[int, _Stripe] = {}
        self._count = 0
        #: Counts the snapshots.
        self._epoch = 0

    def __len__(self) -> int:
        return self._count

    def known(self, hub: int, sn: int) -> Origin | None:
        """Return where a device stands; None if it never sent a sequence here."""
        mixed = _mix(hub, sn)
        stripe = self._stripes.get(mixed & (_STRIPES - 1))
        if stripe is None:
            return None
        _, at = stripe.find(hub, sn, mixed >> 8)
        if at < 0:
            return None
        _, named, boot, *rest = _ROW.unpack_from(stripe.rows, at)
        return Origin(epoch_of(named >> 8, boot), *rest)

    def record(self, hub: int, sn: int, epoch: int, sequence: int, offset: int, hash: int) -> None:
        """Note a committed message of a device: its sequence, offset, and value's hash."""
        mixed = _mix(hub, sn)
        stripe = self._own(mixed & (_STRIPES - 1))
        place, at = stripe.find(hub, sn, mixed >> 8)
        if at < 0:
            at = stripe.add(place, hub, sn, epoch, sequence + 1, offset)
            self._count += 1
        else:
            # What an earlier epoch left in the ring is never asked for: it lies before sequence 0.
            named = sn | generation_of(epoch) << 8
            _STANDING.pack_into(
                stripe.rows, at + _STANDING_AT, named, boot_of(epoch), sequence + 1, offset
            )
        _HASH.pack_into(stripe.rows, at + _RING_AT + sequence % DEVICE_WINDOW * _HASH.size, hash)

    def _own(self, number: int) -> _Stripe:
        """Return a stripe, to be written to."""
        stripe = self._stripes.get(number)
        if stripe is None:
            stripe = self._stripes[number] = _Stripe(self._epoch)
        elif stripe.epoch != self._epoch:
            stripe = self._stripes[number] = _Stripe(self._epoch, *stripe.packed())
        return stripe

    def forget(self, hub: int) -> int:
        """Forget the devices of a hub, which begins anew with any boot; return how many that
        were.
        """
        before = self._count
        for sn in range(_SNS):
            mixed = _mix(hub, sn)
            if self.known(hub, sn) is not None:
                stripe = self._own(mixed & (_STRIPES - 1))
                stripe.remove(stripe.find(hub, sn, mixed >> 8)[0])
                self._count -= 1
        return before - self._count

    def bury(self, hub: int) -> int:
        """Forget the devices of a hub, but for the epoch above which it may come again; return how
        many that were. What erased flash reads as was no boot: none is refused for it.
        """
        epochs = [epoch for _, _, epoch, *_ in self.of_hub(hub)]
        highest = max((one for one in epochs if boot_of(one) <= BOOT_MAX), default=None)
        if highest is not None:
            self.floors.bury(hub, highest)
        return self.forget(hub)

    def of_hub(self, hub: int) -> list[Standing]:
        """Return where the devices of a hub stand."""
        known = ((sn, self.known(hub, sn)) for sn in range(_SNS))
        return [(hub, sn, *origin[:3]) for sn, origin in known if origin is not None]

    def part(self, number: int, least: int) -> tuple[list[Standing], int]:
        """Return where some devices stand, and the part to go on with: 0 if these are the last.

        Parts are small; so many come together that they hold at least so many devices.
        """
        found: list[Standing] = []
        while number < _STRIPES and len(found) < least:
            stripe = self._stripes.get(number)
            rows = _ROW.iter_unpack(stripe.rows) if stripe is not None else ()
            found += [
                (hub, named & 0xFF, epoch_of(named >> 8, boot), wanted, offset)
                for hub, named, boot, wanted, offset, _ in rows
            ]
            number += 1
        return found, number % _STRIPES

    def encode(self) -> list[Frozen]:
        """Return the table for a snapshot, stripe by stripe: number, places, rows."""
        self._epoch += 1
        return [
            Frozen(partial(_packed_stripe, number, stripe))
            for number, stripe in self._stripes.items()
        ]

    @classmethod
    def decode(cls, stripes: list[Any]) -> OriginTable:
        """Return the table of a snapshot."""
        table = cls()
        table._stripes = {
            number: _Stripe(0, places, rows) for number, places, rows in map(opened, stripes)
        }
        table._count = sum(map(len, table._stripes.values()))
        return table


class EpochFloors:
    """Per hub, the lowest epoch that it may still come with, where that is not 0.

    A device of a higher generation raises it to its own, so that nothing of the device before it is
    taken from then on; a hub that was forgotten leaves behind what lies above all that it had.
    """

    __slots__ = ("_least", "tombstones")

    def __init__(self) -> None:
        """Let every hub come with any epoch."""
        #: Numbers alone: a garbage collection does not look into it.
        self._least: dict[int, int] = {}
        #: How many hubs were forgotten, and are known by nothing else.
        self.tombstones = 0

    def __len__(self) -> int:
        return len(self._least)

    def least(self, hub: int) -> int:
        """Return the lowest epoch that a hub may come with."""
        return self._least.get(hub, 0)

    def raise_to(self, hub: int, epoch: int) -> None:
        """Let a hub come with no epoch below this one."""
        if epoch > self._least.get(hub, 0):
            self._least[hub] = epoch

    def bury(self, hub: int, highest: int) -> None:
        """Forget a hub that had no epoch above `highest`: it may come with a higher one alone."""
        self.tombstones += hub not in self._least
        self.raise_to(hub, highest + 1)

    def encode(self) -> tuple[int, bytes, bytes]:
        """Return the table for a snapshot: tombstones, hubs, epochs."""
        hubs, least = array("Q", self._least), array("Q", self._least.values())
        return self.tombstones, hubs.tobytes(), least.tobytes()

    @classmethod
    def decode(cls, tombstones: int, hubs: bytes, least: bytes) -> EpochFloors:
        """Return the table of a snapshot."""
        table, keys, epochs = cls(), array("Q"), array("Q")
        keys.frombytes(hubs)
        epochs.frombytes(least)
        table._least = dict(zip(keys, epochs, strict=True))
        table.tombstones = tombstones
        return table


def _packed_stripe(number: int, stripe: _Stripe) -> tuple[int, Buffer, Buffer]:
    return number, *stripe.packed()


def _mix(hub: int, sn: int) -> int:
    """Spread (hub, sn) over 64 bits: hubs of one maker differ in a few bits only, wherever.

    The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
    generators, 2014).
    """
    x = hub * 0x9E3779B97F4A7C15 + sn * 0xD1B54A32D192ED03 & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31
