"""What the airports sent against what the cluster received. Pure: columns in, figures out.

A message is known by its airport and its number there: 0 for the first flight, each next one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

Numbers = npt.NDArray[np.int64]
Columns = Mapping[str, Numbers]

#: In a column of times or offsets: has not happened.
NEVER = -1


def digest(values: Iterable[bytes]) -> int:
    """Return the sum of the values' xxh3-64: the same values in any order have the same digest."""
    return sum(map(xxhash.xxh3_64_intdigest, values))


@dataclass(slots=True)
class Sent:
    """One airport's ledger. Times are in µs since 1970, by number; so are offsets."""

    sent_us: Numbers
    confirmed_us: Numbers
    offsets: Numbers
    digest: int = 0

    @classmethod
    def blank(cls, count: int) -> Sent:
        """Return the ledger of an airport that will send `count` messages."""
        sent_us, confirmed_us, offsets = (np.full(count, NEVER, np.int64) for _ in range(3))
        return cls(sent_us, confirmed_us, offsets)

    @property
    def sent(self) -> int:
        """The number of messages sent."""
        return int(np.count_nonzero(self.sent_us != NEVER))

    @property
    def confirmed(self) -> int:
        """The number of messages confirmed."""
        return int(np.count_nonzero(self.confirmed_us != NEVER))

    def send(self, first: int, values: Sequence[bytes], now_us: int) -> None:
        """Note that messages `first`, `first` + 1, ... go out now."""
        self.sent_us[first : first + len(values)] = now_us
        self.digest += digest(values)

    def confirm(self, first: int, offsets: Sequence[int], now_us: int) -> None:
        """Note that the broker has messages `first`, `first` + 1, ... at these offsets."""
        self.confirmed_us[first : first + len(offsets)] = now_us
        self.offsets[first : first + len(offsets)] = offsets

    def columns(self) -> Columns:
        """Return what `read` makes a ledger of again."""
        return {
            "sent_us": self.sent_us,
            "confirmed_us": self.confirmed_us,
            "offsets": self.offsets,
            "digest": _split(self.digest),
        }

    @classmethod
    def read(cls, columns: Columns) -> Sent:
        """Return the ledger that gave these columns."""
        return cls(
            columns["sent_us"],
            columns["confirmed_us"],
            columns["offsets"],
            _join(columns["digest"]),
        )


class Received:
    """What the cluster's consumers received from one airport, in the order it came."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._pieces: list[tuple[Numbers, Numbers, Numbers]] = []
        self.digest = 0

    def receive(
        self, offset: int, numbers: Sequence[int], values: Iterable[bytes], now_us: int
    ) -> None:
        """Note messages that lie at `offset`, `offset` + 1, ... and came now."""
        count = len(numbers)
        offsets = np.arange(offset, offset + count, dtype=np.int64)
        times = np.full(count, now_us, np.int64)
        self._pieces.append((np.asarray(numbers, np.int64), offsets, times))
        self.digest += digest(values)

    def columns(self) -> Columns:
        """Return numbers, offsets and times of all deliveries, and the digest."""
        nothing = np.empty(0, np.int64)
        numbers, offsets, times = (
            np.concatenate([nothing, *(piece[column] for piece in self._pieces)])
            for column in range(3)
        )
        return {
            "numbers": numbers,
            "offsets": offsets,
            "received_us": times,
            "digest": _split(self.digest),
        }


@dataclass(frozen=True, slots=True)
class Account:
    """One airport's messages, counted. `received` counts each delivery, `delivered` each message.

    `misplaced`: confirmed at one offset and delivered at another. `out_of_order`: in the order of
    offsets, behind a message that was sent later. `intact`: not a byte of a value has changed.
    """

    origin: str
    sent: int
    confirmed: int
    received: int
    delivered: int
    lost: int
    repeated: int
    strange: int
    misplaced: int
    out_of_order: int
    intact: bool

    @property
    def clean(self) -> bool:
        """Whether every message was sent, confirmed and delivered exactly once, in order."""
        faults = self.lost + self.repeated + self.strange + self.misplaced + self.out_of_order
        return not faults and self.sent == self.confirmed == self.delivered and self.intact


def compare(origin: str, sent: Sent, received: Columns) -> Account:
    """Hold an airport's ledger against what the cluster received from it."""
    numbers, offsets = received["numbers"], received["offsets"]
    count = len(sent.sent_us)
    known = (numbers >= 0) & (numbers < count)
    times = np.bincount(numbers[known], minlength=count)
    delivered = int(np.count_nonzero(times))
    ordered = numbers[np.argsort(offsets, kind="stable")]
    confirmed_at = sent.offsets[numbers[known]]
    return Account(
        origin=origin,
        sent=sent.sent,
        confirmed=sent.confirmed,
        received=len(numbers),
        delivered=delivered,
        lost=int(np.count_nonzero((sent.sent_us != NEVER) & (times == 0))),
        repeated=int(times.sum()) - delivered,
        strange=len(numbers) - int(np.count_nonzero(known)),
        misplaced=int(np.count_nonzero((confirmed_at != NEVER) & (confirmed_at != offsets[known]))),
        out_of_order=int(np.count_nonzero(np.diff(ordered) < 0)),
        intact=sent.digest == _join(received["digest"]),
    )


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds; `count` messages were measured."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def latency(begun_us: Sequence[Numbers], ended_us: Sequence[Numbers]) -> Latency:
    """Return percentiles over several columns of pairs; what has not happened does not count."""
    begun, ended = np.concatenate(begun_us), np.concatenate(ended_us)
    happened = (begun != NEVER) & (ended != NEVER)
    spans = (ended[happened] - begun[happened]) / 1_000
    if not len(spans):
        return Latency(0, 0.0, 0.0, 0.0)
    p50, p99, most = np.percentile(spans, [50, 99, 100])
    return Latency(len(spans), float(p50), float(p99), float(most))


def first_receipts(received: Columns, count: int) -> Numbers:
    """Return when each of `count` messages came first, in µs since 1970, by number."""
    numbers, times = received["numbers"], received["received_us"]
    known = (numbers >= 0) & (numbers < count)
    found = np.full(count, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(found, numbers[known], times[known])
    found[found == np.iinfo(np.int64).max] = NEVER
    return found


# A sum of 64-bit numbers has up to 62 + 63 bits: two places of a column.


def _split(total: int) -> Numbers:
    return np.array([total & (1 << 62) - 1, total >> 62], np.int64)


def _join(halves: Numbers) -> int:
    return int(halves[0]) | int(halves[1]) << 62
