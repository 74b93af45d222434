"""What goes into a relay's partition and comes out of it: events and effects.

A host passes each event to `RelayPartition.handle` (or `Upper.handle`, in the core) with the clock,
and carries out the effects in order. Nothing calls back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


@dataclass(frozen=True, slots=True)
class PullCame:
    """A child pulls; `link` names the connection that the answer goes to."""

    link: int
    pull: Pull


@dataclass(frozen=True, slots=True)
class FilterAsked:
    """A child asks from where on all is kept that it wants."""

    link: int
    asked: AskFilter


@dataclass(frozen=True, slots=True)
class HoldSaid:
    """A child that pulls from elsewhere says what it needs."""

    said: SayHold


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """The connection of a child is gone."""

    link: int


@dataclass(frozen=True, slots=True)
class PortionRead:
    """What `ReadPortion` named was read; None if the log could not be read."""

    ticket: int
    portion: Portion | None


@dataclass(frozen=True, slots=True)
class PortionLost:
    """Of the core: of what `ReadPortion` named, all below the offset `behind` is damaged there, and
    will not be read any more.
    """

    ticket: int
    behind: int


@dataclass(frozen=True, slots=True)
class LogMoved:
    """Of the core: its log has more, or less, than before, or the clock went on."""


@dataclass(frozen=True, slots=True)
class LogCut:
    """Of the core: a lineage began at `offset`; what was there before is gone."""

    offset: int


@dataclass(frozen=True, slots=True)
class AnswerCame:
    """An upper node answered a pull; `data` are the bytes behind the answer's head."""

    upper: UpperNode
    answer: Answer
    data: memoryview


@dataclass(frozen=True, slots=True)
class RefusalCame:
    """An upper node refused a pull."""

    upper: UpperNode
    refusal: AnyRefusal


@dataclass(frozen=True, slots=True)
class FilterToldFrom:
    """An upper node said from where on it keeps all that was asked for."""

    upper: UpperNode
    told: FilterFrom


@dataclass(frozen=True, slots=True)
class Synced:
    """The log is durable up to the entry at `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class UppersSet:
    """From whom to pull, the preferred one first; those of the core come last."""

    uppers: tuple[UpperNode, ...]


@dataclass(frozen=True, slots=True)
class InterestSet:
    """Which tags the consumers and children of this set want, within what the topology allows."""

    tags: Tags


@dataclass(frozen=True, slots=True)
class ChildrenSet:
    """Which nodes own this partition in the sets below. Data is kept for the nodes of `limits`
    alone, for each within these; for any without it.
    """

    children: frozenset[Child]
    limits: Mapping[Child, HoldLimits] | None = None


@dataclass(frozen=True, slots=True)
class RetentionSet:
    """What lies below `offset` is needed by no consumer of this set, and may go."""

    offset: int


@dataclass(frozen=True, slots=True)
class DemandSet:
    """Readers of this set wait for a mark at or above `stamp`; a number above all if none does."""

    stamp: int


@dataclass(frozen=True, slots=True)
class Ticked:
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


@dataclass(frozen=True, slots=True)
class SendToChild:
    """Send a message to a child, and the bytes behind its head."""

    link: int
    message: Answer | AnyRefusal | FilterFrom
    data: Sequence[Buffer] = ()


@dataclass(frozen=True, slots=True)
class SendToUpper:
    """Send a message to an upper node."""

    upper: UpperNode
    message: Pull | AskFilter | SayHold


@dataclass(frozen=True, slots=True)
class ReadPortion:
    """Read what a plan names, and pass it on as `PortionRead` with the same ticket. It is for the
    pull that came by `link`.
    """

    ticket: int
    plan: Plan
    link: int


@dataclass(frozen=True, slots=True)
class AppendEntry:
    """Append an entry at `index`, and say `Synced` once it is durable."""

    index: int
    record: AnyRecord
    data: Sequence[Buffer] = ()


@dataclass(frozen=True, slots=True)
class ReclaimBelow:
    """Entries below `index` are needed no more, once a snapshot holds what they said."""

    index: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """An operator should know; `kind` is for machines."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Moved:
    """For readers of this set: [start, end) is here, and `marks` hold. What lay at or above
    `cut_at` was taken back, if it is not -1; `gap` was lost.
    """

    start: int
    end: int
    marks: tuple[Mark, ...] = ()
    cut_at: int = -1
    gap: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TopicEnded:
    """The topic was deleted in the core: this partition ends."""


UpperEffect = SendToChild | ReadPortion | Alarm
Effect = UpperEffect | SendToUpper | AppendEntry | ReclaimBelow | Moved | TopicEnded
