"""What was sent, confirmed, delivered and acked, and what of that is not so in the end. Pure.

The ledger is the clients': nothing in it was counted by a broker. Values are told apart by their
writer and serial, in their first bytes; the rest follows from these two, and is compared too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from random import Random
from typing import NamedTuple

import msgspec

#: One in so many values is long, so that a batch lies on many pages and sectors of the disk.
_LONG_EVERY = 16
_LONG_BYTES = 48 * 1024
_SHORT_BYTES = 100
_FILLER = Random(0x706F776572).randbytes(_LONG_BYTES + 256)


class Name(NamedTuple):
    """Which message it is: the serial counts from 0 on for each writer, in the order of sending."""

    writer: int
    serial: int


class Place(NamedTuple):
    """Where a message lies."""

    partition: int
    offset: int


#: What a reader was given: where it lies, and which message it is; None if no message is like it.
Given = tuple[Place, Name | None]


class Delivery(NamedTuple):
    """A message that came to the consumer, and whether its ack had been confirmed before."""

    place: Place
    value: bytes
    after_ack: bool


def value_of(name: Name) -> bytes:
    """Return the bytes of a message."""
    size = _LONG_BYTES if name.serial % _LONG_EVERY == _LONG_EVERY - 1 else _SHORT_BYTES
    head = b"%d %d " % name
    begin = (name.writer + name.serial) % 256
    return head + _FILLER[begin : begin + size - len(head)]


def name_of(value: bytes) -> Name | None:
    """Return which message has these bytes, all of them; None if none does."""
    writer, _, rest = value.partition(b" ")
    serial, _, _ = rest.partition(b" ")
    if not (writer.isdigit() and serial.isdigit() and len(writer) + len(serial) < 40):
        return None
    name = Name(int(writer), int(serial))
    return name if value_of(name) == value else None


class Ledger:
    """What the clients saw, in order. A writer sends to the partition of its number."""

    def __init__(self, partitions: int, readers: int = 0) -> None:
        """Begin with nothing."""
        #: How many messages each writer has sent.
        self.sent = dict.fromkeys(range(partitions), 0)
        #: By writer, the offsets of those that are confirmed, from its first one on.
        self.confirmed: dict[int, list[int]] = {writer: [] for writer in self.sent}
        self.deliveries: list[Delivery] = []
        self.acked: set[Place] = set()
        #: By reader, what it was given.
        self.readings: list[list[Given]] = [[] for _ in range(readers)]

    def deliver(self, place: Place, value: bytes) -> None:
        """Note a message that came."""
        self.deliveries.append(Delivery(place, value, place in self.acked))

    def ack(self, places: Iterable[Place]) -> None:
        """Note that the ack of these was confirmed."""
        self.acked.update(places)

    @property
    def behind(self) -> int:
        """How many were sent and are not acked."""
        return sum(self.sent.values()) - len(self.acked)

    def __str__(self) -> str:
        """Say how far each partition is."""
        return "; ".join(
            f"partition {writer}: sent {sent:,}, confirmed {len(self.confirmed[writer]):,}, "
            f"delivered {sum(one.place.partition == writer for one in self.deliveries):,}, "
            f"acked {sum(place.partition == writer for place in self.acked):,}"
            for writer, sent in self.sent.items()
        ) + "".join(f"; reader {at}: {len(one):,}" for at, one in enumerate(self.readings))


class Verdict(msgspec.Struct, frozen=True):
    """Counts of messages; all but the first five and `again` are to be 0."""

    sent: int
    confirmed: int
    delivered: int
    acked: int
    #: Given to readers, all together.
    read: int
    #: Confirmed, and not in the topic where the receipt says.
    lost: int
    #: Confirmed, and never delivered.
    undelivered: int
    #: In the topic more than once, or delivered after their ack was confirmed.
    repeated: int
    #: In the topic before one that their writer had sent earlier.
    reordered: int
    #: In the topic without having been sent, or with other bytes; or delivered otherwise than they
    #: are there.
    strange: int
    #: Delivered again before an ack was confirmed: the work on them was done, and not yet told.
    again: int
    #: Given to readers at another turn than the topic's one order has it, or with other bytes, or
    #: not at all.
    differing: int

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, left out, repeated, reordered, strange or differing."""
        bad = (self.lost, self.undelivered, self.repeated, self.reordered, self.strange)
        return not any(bad) and not self.differing


def judge(
    ledger: Ledger, topic: Mapping[int, Sequence[bytes]], order: Sequence[Given] = ()
) -> Verdict:
    """Compare the ledger with all values of the topic, by partition, each in offset order, and what
    readers were given with the topic's one order.
    """
    found: dict[Name, Place] = {}
    repeated = reordered = strange = 0
    for partition, values in topic.items():
        last: dict[int, int] = {}
        for offset, value in enumerate(values):
            name = name_of(value)
            if name is None or name.serial >= ledger.sent.get(name.writer, 0):
                strange += 1
                continue
            if name in found:
                repeated += 1
                continue
            found[name] = Place(partition, offset)
            reordered += name.serial < last.get(name.writer, -1)
            last[name.writer] = name.serial
    came: set[Place] = set()
    again = 0
    for place, value, after_ack in ledger.deliveries:
        values = topic.get(place.partition, ())
        strange += place.offset >= len(values) or values[place.offset] != value
        repeated += after_ack
        again += place in came and not after_ack
        came.add(place)
    confirmed = {
        Name(writer, serial): Place(writer, offset)
        for writer, offsets in ledger.confirmed.items()
        for serial, offset in enumerate(offsets)
    }
    return Verdict(
        sum(ledger.sent.values()),
        len(confirmed),
        len(came),
        len(ledger.acked),
        sum(map(len, ledger.readings)),
        sum(found.get(name) != place for name, place in confirmed.items()),
        sum(place not in came for place in confirmed.values()),
        repeated,
        reordered,
        strange,
        again,
        sum(one != due for given in ledger.readings for one, due in zip_longest(given, order)),
    )
