"""What clients observe besides messages: effects, errands, schemas, parcels, lines, queries.

Checkers judge by them (`weir_lab.sim.checkers`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

#: In the place of a large value that its reader did not load: no message has this one.
UNREAD = b""
#: A message: its partition and offset.
Place = tuple[int, int]


class Row(NamedTuple):
    """A message at its place in the one order of a topic."""

    stamp: int
    partition: int
    offset: int
    value: bytes

    def is_like(self, other: Row | None) -> bool:
        """Whether it is the other one, as far as it was read."""
        same = other is not None and self[:3] == other[:3]
        return same and other is not None and self.value in (UNREAD, other.value)


class Gap(NamedTuple):
    """Messages of a partition, from `first` on and below `behind`, that retention took before they
    were read.
    """

    partition: int
    first: int
    behind: int

    def holds(self, row: Row) -> bool:
        """Whether a row lies in it."""
        return row.partition == self.partition and self.first <= row.offset < self.behind


@dataclass(slots=True)
class Ledger:
    """What the database of handlers holds, and what else is known of their messages."""

    #: By message, how often its effect is in the database.
    effects: Counter[Place] = field(default_factory=Counter)
    #: By message, how often a handler of it began.
    began: Counter[Place] = field(default_factory=Counter)
    #: How often a handler of it raised, or was stopped.
    failed: Counter[Place] = field(default_factory=Counter)
    #: Messages that handlers reject each time.
    hopeless: set[Place] = field(default_factory=set)
    #: What lies in the dead-letter topic, and whether for this reason: it was delivered too often,
    #: and no handler came to an end. A consumer that is granted messages and is lost before
    #: it began with any has tried one of them as far as brokers can know.
    dead: dict[Place, bool] = field(default_factory=dict)
    #: Of them, those that are not rejected were tried so often; 0: for ever.
    attempts: int = 0
    #: Whether their cluster had nothing left to do in the end.
    drained: bool = False
    #: How often a transaction was lost, and how often an answer to a commit was.
    lost: int = 0
    unanswered: int = 0


@dataclass(slots=True)
class Errands:
    """Messages of a topic of their own, by value."""

    sent: set[bytes] = field(default_factory=set)
    confirmed: set[bytes] = field(default_factory=set)
    #: How often a handler came to its end with one, and how often it rejected it.
    done: Counter[bytes] = field(default_factory=Counter)
    rejected: Counter[bytes] = field(default_factory=Counter)
    #: Whether handlers reject nothing any more.
    mended: bool = False
    #: Whether nothing was left in the end, of dead letters neither.
    drained: bool = False


@dataclass(slots=True)
class Typed:
    """Versions of a topic's schema, by number, and the values that name them."""

    versions: dict[int, bytes] = field(default_factory=dict)
    confirmed: set[bytes] = field(default_factory=set)
    #: By value, the number that it had when it was read in the end, if `is_read`.
    read: dict[bytes, int] = field(default_factory=dict)
    is_read: bool = False


#: Stamp, partition, offset and value of a message.
SunkRow = tuple[int, int, int, bytes]


@dataclass(slots=True)
class Sunk:
    """What queries wrote to a topic, batch by batch, and what readers in total order found in it.

    A batch is named by its query and its number.
    """

    #: What each task of a batch writes.
    rows: dict[str, list[list[bytes]]] = field(default_factory=dict)
    published: set[str] = field(default_factory=set)
    #: By batch, the stamps that confirms have told.
    stamps: dict[str, set[int]] = field(default_factory=dict)
    #: What was published when somebody began to read, and what he found, from the first message on.
    readings: list[tuple[set[str], list[SunkRow]]] = field(default_factory=list)


@dataclass(slots=True)
class Parcel:
    """A message that was published, and what became of it; times are virtual µs."""

    name: str
    value: bytes
    #: Before this it is not to be delivered; the clocks of nodes must be right for that.
    due: int
    large: bool
    #: Where its receipt says that it is, if one came.
    place: tuple[int, int] | None = None
    #: Where it was delivered from, and when that was first.
    places: set[tuple[int, int]] = field(default_factory=set)
    arrived: int = -1
    #: Whether somebody said, or was about to say, that it is done.
    told: bool = False
    #: A sentence on what was delivered in its place.
    wrong: str = ""


@dataclass(slots=True)
class Parcels:
    """All that were published, by name."""

    all: dict[str, Parcel] = field(default_factory=dict)
    #: Whether their cluster had nothing left to do in the end.
    drained: bool = False


@dataclass(slots=True)
class Taken:
    """What one run of `weir sub` printed that somebody could read."""

    name: str
    #: So many are to be printed, and then it ends; 0: until it is told to end.
    count: int
    places: list[Place] = field(default_factory=list)
    #: When each of them was printed, in virtual µs.
    times: list[int] = field(default_factory=list)
    #: When it came to its end by itself, and that is a success; -1: never.
    ended_at: int = -1
    #: Whether that was once nothing befell anybody any more.
    calm: bool = False


@dataclass(slots=True)
class Printed:
    """The runs of `weir sub` for one cluster, in the order in which they began."""

    runs: list[Taken] = field(default_factory=list)
    #: Whether the cluster had nothing left to do in the end.
    drained: bool = False


@dataclass(slots=True)
class MicroBatch:
    """One micro-batch: the positions of the cut that it ends at, and that cut's stamp, or 0.

    Each run of it that came to its end has its rows in `runs`, and in `gaps` what it was told is
    gone; the first that was committed too is what the sink has.
    """

    positions: dict[int, int]
    stamp: int
    runs: list[list[Row]] = field(default_factory=list)
    gaps: list[list[Gap]] = field(default_factory=list)
    committed: bool = False


@dataclass(slots=True)
class Query:
    """A query from an empty checkpoint on."""

    name: str
    #: Where it begins, by partition; partitions that joined later are read from their beginning.
    begin: dict[int, int]
    #: Whether it was to begin at the earliest message.
    earliest: bool
    batches: list[MicroBatch] = field(default_factory=list)
    #: Whether it was told that messages are gone that it had not read: it goes on no more.
    broken: bool = False
    #: When it last began to look for more, and found none, in the end; -1 if it did not come there.
    cut: int = -1
