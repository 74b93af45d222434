"""What goes into a relay's partition and comes out of it: events and effects.

A host passes each event to `RelayPartition.handle` (or `Upper.handle`, in the core) with the clock,
and carries out the effects in order. Nothing calls back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from weir.codec import Buffer
from weir.relay.entries import AnyRecord
from weir.relay.holds import Child, HoldLimits
from weir.relay.messages import (
    Answer,
    AnyRefusal,
    AskFilter,
    FilterFrom,
    Mark,
    Pull,
    SayHold,
)
from weir.relay.portion import Plan, Portion
from weir.relay.rows import Tags


class UpperNode(NamedTuple):
    """A node that a relay may pull a partition from. One of the core has all that there is."""

    brokerset: int
    node: int
    is_core: bool


# -- events --------------------------------------------------------------------------------------


class PullCame(msgspec.Struct, frozen=True):
    """A child pulls; `link` names the connection that the answer goes to."""

    link: int
    pull: Pull


class FilterAsked(msgspec.Struct, frozen=True):
    """A child asks from where on all is kept that it wants."""

    link: int
    asked: AskFilter


class HoldSaid(msgspec.Struct, frozen=True):
    """A child that pulls from elsewhere says what it needs."""

    said: SayHold


class LinkClosed(msgspec.Struct, frozen=True):
    """The connection of a child is gone."""

    link: int


class PortionRead(msgspec.Struct, frozen=True):
    """What `ReadPortion` named was read; None if the log could not be read."""

    ticket: int
    portion: Portion | None


class PortionLost(msgspec.Struct, frozen=True):
    """Of the core: of what `ReadPortion` named, all below the offset `behind` is damaged there, and
    will not be read any more.
    """

    ticket: int
    behind: int


class LogMoved(msgspec.Struct, frozen=True):
    """Of the core: its log has more, or less, than before, or the clock went on."""


class LogCut(msgspec.Struct, frozen=True):
    """Of the core: a lineage began at `offset`; what was there before is gone."""

    offset: int


class AnswerCame(msgspec.Struct, frozen=True):
    """An upper node answered a pull; `data` are the bytes behind the answer's head."""

    upper: UpperNode
    answer: Answer
    data: memoryview


class RefusalCame(msgspec.Struct, frozen=True):
    """An upper node refused a pull."""

    upper: UpperNode
    refusal: AnyRefusal


class FilterToldFrom(msgspec.Struct, frozen=True):
    """An upper node said from where on it keeps all that was asked for."""

    upper: UpperNode
    told: FilterFrom


class Synced(msgspec.Struct, frozen=True):
    """The log is durable up to the entry at `index`."""

    index: int


class UppersSet(msgspec.Struct, frozen=True):
    """The upper nodes to pull from, the preferred one first; those of the core come last."""

    uppers: tuple[UpperNode, ...]


class InterestSet(msgspec.Struct, frozen=True):
    """Which tags the consumers and children of this set want, within what the topology allows."""

    tags: Tags


class ChildrenSet(msgspec.Struct, frozen=True):
    """Which nodes own this partition in the sets below. Data is kept for the nodes of `limits`
    alone, for each within these; for any without it.
    """

    children: frozenset[Child]
    limits: Mapping[Child, HoldLimits] | None = None


class RetentionSet(msgspec.Struct, frozen=True):
    """What lies below `offset` is needed by no consumer of this set, and may go."""

    offset: int


class DemandSet(msgspec.Struct, frozen=True):
    """Readers of this set wait for a mark at or above `stamp`; a number above all if none does."""

    stamp: int


class Ticked(msgspec.Struct, frozen=True):
    """The clock went on."""


UpperEvent = (
    PullCame
    | FilterAsked
    | HoldSaid
    | LinkClosed
    | PortionRead
    | PortionLost
    | LogMoved
    | LogCut
    | Ticked
)
Setting = UppersSet | InterestSet | ChildrenSet | RetentionSet | DemandSet
Event = (
    PullCame
    | FilterAsked
    | HoldSaid
    | LinkClosed
    | PortionRead
    | AnswerCame
    | RefusalCame
    | FilterToldFrom
    | Synced
    | Setting
    | Ticked
)

# -- effects -------------------------------------------------------------------------------------


class SendToChild(msgspec.Struct, frozen=True):
    """Send a message to a child, and the bytes behind its head."""

    link: int
    message: Answer | AnyRefusal | FilterFrom
    data: Sequence[Buffer] = ()


class SendToUpper(msgspec.Struct, frozen=True):
    """Send a message to an upper node."""

    upper: UpperNode
    message: Pull | AskFilter | SayHold


class ReadPortion(msgspec.Struct, frozen=True):
    """Read what a plan names, and pass it on as `PortionRead` with the same ticket. It is for the
    pull that came by `link`.
    """

    ticket: int
    plan: Plan
    link: int


class AppendEntry(msgspec.Struct, frozen=True):
    """Append an entry at `index`, and say `Synced` once it is durable. `encoded` are its bytes."""

    index: int
    record: AnyRecord
    data: Sequence[Buffer]
    encoded: tuple[Buffer, ...]


class ReclaimBelow(msgspec.Struct, frozen=True):
    """Entries below `index` are needed no more, once a snapshot holds what they said."""

    index: int


class Alarm(msgspec.Struct, frozen=True):
    """An operator should know; `kind` is for machines."""

    kind: str
    text: str


class Moved(msgspec.Struct, frozen=True):
    """For readers of this set: [start, end) is here, and `marks` hold. What lay at or above
    `cut_at` was taken back, if it is not -1; `gap` was lost.
    """

    start: int
    end: int
    marks: tuple[Mark, ...] = ()
    cut_at: int = -1
    gap: tuple[int, int] | None = None


class TopicEnded(msgspec.Struct, frozen=True):
    """The topic was deleted in the core: this partition ends."""


UpperEffect = SendToChild | ReadPortion | Alarm
Effect = UpperEffect | SendToUpper | AppendEntry | ReclaimBelow | Moved | TopicEnded
