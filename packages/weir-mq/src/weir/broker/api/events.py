"""What happens to a shard: what its host reports, and what its components find that others must act
on. At batch or control rate, never one object a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from weir.access.tokens import SessionToken
from weir.codec import Buffer
from weir.errors import Damaged
from weir.model.topic import Topic
from weir.protocol.device import DeviceRequest
from weir.protocol.frame import ClientFrame
from weir.protocol.link import LinkFrame
from weir.protocol.trunk import Arrival, TrunkFrame
from weir.storage.log import Flush
from weir.storage.scrub import MendPiece, Scrubbed
from weir.storage.segment_files import Spare
from weir.storage.segment_lifecycle import Chore


class Opened(msgspec.Struct, frozen=True):
    """A peer connected. `session` is unique over all time: the host draws its upper half.

    With a `principal` it is connected to another shard, that of `place`, which let it in and passes
    its requests on: at the access version `admitted_at`, 0 if that is not known, and by this
    `token`, if by one. `address` is that of its machine, empty if it has none, or it is not known.
    """

    session: int
    principal: str = ""
    place: int = 0
    address: str = ""
    admitted_at: int = 0
    token: SessionToken | None = None


class Secured(msgspec.Struct, frozen=True):
    """Others cannot read the traffic with a peer: its connection is encrypted, or stays on this
    machine. It comes before a peer's first `Received` that is a login. Failures of logins count for
    its `origin` (`weir.access.failures.origin_of`), which is empty if it has none.
    """

    session: int
    origin: str = ""


class Certified(msgspec.Struct, frozen=True):
    """A peer has shown a certificate of this set, and holds its key: that of a user,
    `NAMESPACE/NAME`, or of a device, its hub and its generation. It comes before a peer's first
    `Received`.
    """

    session: int
    user: str = ""
    device: tuple[int, int] | None = None


class Closed(msgspec.Struct, frozen=True):
    """A peer is gone; replies to it are dropped from now on."""

    session: int


class LetGo(msgspec.Struct, frozen=True):
    """The host is done with a peer, for this reason: a `Hangup` comes of it, behind all that waits
    to be sent to it.
    """

    session: int
    reason: str


class Received(msgspec.Struct, frozen=True):
    """Whole frames of one read of one peer, in order."""

    session: int
    frames: Sequence[ClientFrame | DeviceRequest]


class Arrived(msgspec.Struct, frozen=True):
    """Devices connected, and each said hello and published at once: as `Opened` and `Received` of
    each, for less.
    """

    arrivals: list[Arrival]
    principal: str = ""
    place: int = 0


class Flushed(msgspec.Struct, frozen=True):
    """A `StartFlush` is done: all of it is durable. If the log `rests`, `Rested` follows soon: a
    host that has no time to lose leaves both out.
    """

    log: int
    flush: Flush
    rests: bool = False


class Rested(msgspec.Struct, frozen=True):
    """The next `StartFlush` of a log may come."""

    log: int


class SpareMade(msgspec.Struct, frozen=True):
    """A `MakeSpare` is done, or failed (the disk is full: the shard asks again after a pause)."""

    log: int
    spare: Spare
    made: bool = True


class ReadDone(msgspec.Struct, frozen=True):
    """A `StartRead` is done: verified payloads, or the reason why not.

    `damaged_at` is the log position of the first byte that is damaged, -1 for other failures.
    """

    ticket: int
    payloads: Sequence[Buffer]
    failure: str = ""
    damaged_at: int = -1


class CheckpointSaved(msgspec.Struct, frozen=True):
    """A `SaveCheckpoint` is done and durable, having written `size` bytes; or it failed, and the
    file is what it was.
    """

    log: int
    saved: bool = True
    size: int = 0


class ChoreDone(msgspec.Struct, frozen=True):
    """A `StartChore` is done, with what its `run` returned; or it failed, and is left undone."""

    log: int
    chore: Chore
    found: Scrubbed | None = None


class TrunkOpened(msgspec.Struct, frozen=True):
    """This shard can pass requests on to another shard: of its node, or by its place elsewhere."""

    shard: int


class TrunkClosed(msgspec.Struct, frozen=True):
    """The trunk to another shard broke: what it was asked has no answer any more."""

    shard: int


class PassedBack(msgspec.Struct, frozen=True):
    """Whole frames that another shard sent back, in order."""

    shard: int
    frames: Sequence[TrunkFrame]


class LinkOpened(msgspec.Struct, frozen=True):
    """A shard of another node can be sent to, on both lanes; `shards` is how many its node has.

    `run` is drawn when its process starts: another one means that it has forgotten what it was
    sent and has not made durable. `level` is the highest format level that its release supports.
    """

    place: int
    shards: int
    run: int
    level: int


class LinkClosed(msgspec.Struct, frozen=True):
    """The link to a shard of another node broke: what was sent on it last may be lost."""

    place: int


class Outlived(msgspec.Struct, frozen=True):
    """A node of a set that was promoted without this node has proven its identity, and named the
    lineage in which the groups continue there: this node leaves them.
    """

    node: int
    lineage: int


class PeerSent(msgspec.Struct, frozen=True):
    """Whole frames that a shard of another node sent, in the order of their lane."""

    place: int
    frames: Sequence[LinkFrame]


class Ticked(msgspec.Struct, frozen=True):
    """Time has passed. The host sends one every `TICK_MS` or so."""


class Stopping(msgspec.Struct, frozen=True):
    """Take no more publishes, finish what is under way, save a checkpoint, then say `Stopped`.

    Acks of what was granted are taken for so long; then the log must come to rest.
    """

    acks_ms: int = 5_000


TICK_MS = 50

Event = (
    Opened
    | Secured
    | Certified
    | Closed
    | LetGo
    | Received
    | Arrived
    | Flushed
    | Rested
    | SpareMade
    | ReadDone
    | CheckpointSaved
    | ChoreDone
    | TrunkOpened
    | TrunkClosed
    | PassedBack
    | LinkOpened
    | LinkClosed
    | Outlived
    | PeerSent
    | Ticked
    | Stopping
)


class RottenEntry(msgspec.Struct, frozen=True):
    """The scrub found the payload of an entry to be bad at a place."""

    group: int
    index: int
    place: int


class MendDone(msgspec.Struct, frozen=True):
    """A piece that fills in an entry was run, and whether that entry is sound now."""

    piece: MendPiece
    is_sound: bool


class GroupComplete(msgspec.Struct, frozen=True):
    """A group has all again that it lacked."""

    group: int


class ReplicaStopped(msgspec.Struct, frozen=True):
    """A replica met what it cannot apply, and only listens from now on."""

    group: int
    #: Says what could not be applied, and what to do.
    halt: Damaged
    error: Exception


class RegistryRejoins(msgspec.Struct, frozen=True):
    """The others gave the damaged replica of the registry a new voter number, to begin anew."""

    voter: int


class TopicOpened(msgspec.Struct, frozen=True):
    """A topic is new here, or got more partitions."""

    topic: Topic


class AccessNarrowed(msgspec.Struct, frozen=True):
    """Something was taken away from somebody, perhaps from live sessions."""


Finding = (
    AccessNarrowed
    | RottenEntry
    | MendDone
    | GroupComplete
    | ReplicaStopped
    | RegistryRejoins
    | TopicOpened
)
#: In the order in which they were found.
Findings = deque[Finding]
