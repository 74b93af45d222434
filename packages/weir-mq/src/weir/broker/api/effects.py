"""What a shard asks of its host. Effects are an ordered list that no host may reorder.

Nothing here waits for another effect: a reply that depends on a sync is only returned by the
`handle` call that was told of the sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from weir.access.devices import FrameKeys
from weir.codec import Buffer
from weir.model.ids import SET_UNKNOWN
from weir.storage.disk import Disk
from weir.storage.format.checkpoint import Checkpoint
from weir.storage.log import Flush
from weir.storage.segment_files import Spare
from weir.storage.segment_lifecycle import Chore


class Send(msgspec.Struct, frozen=True):
    """Write these buffers to a peer, in this order, or drop them if it is gone.

    `charged` bytes of the budget come back when they have left this process, or were dropped.
    """

    session: int
    buffers: tuple[Buffer, ...]
    charged: int = 0


class Answers(msgspec.Struct, frozen=True):
    """Write to each of these peers its bytes, or drop the bytes of a peer that is gone: the
    confirms of a device batch.
    """

    replies: dict[int, bytes]


class Pass(msgspec.Struct, frozen=True):
    """Write a trunk frame to another shard of this node, or drop it if its trunk broke.

    `charged` is what it is for `Send`; it comes back by `Shard.passed_on`.
    """

    shard: int
    buffers: tuple[Buffer, ...]
    charged: int = 0


class SendToPeer(msgspec.Struct, frozen=True):
    """Write whole link frames to a shard of another node, or drop them while its link is down.

    They go in order, those that are `quick` on a lane of their own, so that large ones never delay
    them. `charged` is what it is for `Send`.
    """

    place: int
    quick: bool
    buffers: tuple[Buffer, ...]
    charged: int = 0


class Connect(msgspec.Struct, frozen=True):
    """Keep links to the shards of another node, which listens there; again with every change.

    Only the folder of that `birth` is the node, once the set knows it: 0 until then. Likewise it is
    of `brokerset`: `SET_UNKNOWN` until then. By `join_key` it proves until then that it is the node
    that was added; empty: it cannot.
    """

    node: int
    host: str
    port: int
    birth: int = 0
    brokerset: int = SET_UNKNOWN
    join_key: bytes = b""


class Disconnect(msgspec.Struct, frozen=True):
    """Keep no links to a node any more, and let it not link to this one: it left the set. No
    `Connect` need have named it: it may have left while this node did not run. With a `lineage`,
    another set was promoted without it, and it is told so when it comes back.
    """

    node: int
    lineage: int = 0


class GuardLinks(msgspec.Struct, frozen=True):
    """Whether a node that no `Connect` has named, or that was added and has not come, links here by
    its certificate or by its join key only. So it is in a closed set: what links as a node speaks
    for all principals.
    """

    named_only: bool


class EndLink(msgspec.Struct, frozen=True):
    """End the link by which the shard at a place sends here: what it said cannot be true."""

    place: int
    reason: str


class ReplicaHalted(msgspec.Struct, frozen=True):
    """A replica here met what it cannot apply, and takes no part any more; `error` says what it
    was, `reason` all that an operator needs to know.
    """

    group: int
    reason: str
    error: Exception


class EndTrunk(msgspec.Struct, frozen=True):
    """End the trunk by which the shard at a place is asked: what it answered makes no sense."""

    place: int
    reason: str


class Hangup(msgspec.Struct, frozen=True):
    """Close a peer's connection once what was sent to it is out. With `failed` its login or proof
    was wrong: the next connection from its address may have to wait.
    """

    session: int
    reason: str
    failed: bool = False


class SignFrames(msgspec.Struct, frozen=True):
    """Expect that a device signs its frames from now on, and sign what is sent to it, from behind
    the next reply to a proof on.
    """

    session: int
    keys: FrameKeys


class HoldReads(msgspec.Struct, frozen=True):
    """Stop (or, with `hold` False, resume) reading from all peers: the byte budget is used up."""

    hold: bool


class StartFlush(msgspec.Struct, frozen=True):
    """Run `flush` on the log's disk, behind these effects, then `Flushed`.

    After an `OSError` (no room for a new segment) the host runs it again, after a pause each time;
    a `DiskFailed` ends the host, here and below. Behind a flush of a crowd the log rests until
    `rest_ms` after it began, see `Flushed`: the next one then holds many devices, at the price of
    few.
    """

    log: int
    flush: Flush
    rest_ms: int = 0


class Work(Protocol):
    """Work off the loop that yields payloads, such as `weir.storage.log_reader.Reading`."""

    @property
    def log(self) -> int:
        """The number of the log whose disk it may read."""

    @property
    def size(self) -> int:
        """About how many bytes it gives."""

    @property
    def cached(self) -> Sequence[Buffer] | None:
        """What it gives, if nothing has to be run for it."""

    def run(self, disk: Disk) -> Sequence[Buffer]:
        """Return the payloads; blocks. Raises `LogDamaged` or `OSError`."""

    def pin(self) -> None:
        """Keep what it reads where it is."""

    def release(self) -> None:
        """Let it go, once for each `pin`."""


class HoldSession(msgspec.Struct, frozen=True):
    """Stop reading from a peer (or, with `hold` False, go on): what it uses has a quota."""

    session: int
    hold: bool


class AssignNamespace(msgspec.Struct, frozen=True):
    """A peer uses this namespace from now on: under pressure namespaces are served in turn."""

    session: int
    namespace: str


class StartRead(msgspec.Struct, frozen=True):
    """Run `reading` on the log's disk off the loop, then report `ReadDone` with the ticket."""

    log: int
    ticket: int
    reading: Work


class MakeSpare(msgspec.Struct, frozen=True):
    """Prepare a segment file off the loop, then report `SpareMade`, or that it failed."""

    log: int
    spare: Spare


class SaveCheckpoint(msgspec.Struct, frozen=True):
    """Make `data` the log's checkpoint, off the loop, where it is packed
    (`weir.storage.format.checkpoint.save`); then report `CheckpointSaved`, or that it failed.
    """

    log: int
    name: str
    data: Checkpoint


class StartChore(msgspec.Struct, frozen=True):
    """Run `chore` on the log's disk off the loop, then report `ChoreDone`: nobody waits for it."""

    log: int
    chore: Chore


class Stopped(msgspec.Struct, frozen=True):
    """Everything is durable and saved: the host may end."""


Effect = (
    Send
    | Answers
    | Pass
    | SendToPeer
    | Connect
    | Disconnect
    | GuardLinks
    | EndLink
    | ReplicaHalted
    | EndTrunk
    | Hangup
    | SignFrames
    | HoldReads
    | HoldSession
    | AssignNamespace
    | StartFlush
    | StartRead
    | MakeSpare
    | SaveCheckpoint
    | StartChore
    | Stopped
)
